// Keys: which keys ask the most and are denied the most, one key in detail, and the
// actions on it with their record.

import { act, endOverride, overrideFacts, overrideTag, setOverride } from './actions.js';
import { APIError, get, post, remove } from './api.js';
import { address } from './address.js';
import { shareBar } from './chart.js';
import { breakable, card, el, field, keyNode, reconcile, segmented, setEmpty, setText, table } from './dom.js';
import { compact, integer, percent, seconds, time } from './format.js';
import { t, tn, word } from './language.js';
import { limitText } from './live.js';

const scopes = [['daemon', t('This daemon')], ['all', t('All daemons'), t('All daemons on the same Redis')]];
const requestLimits = '-'; // stands for limits in requests, which have no rule
const orders = [['asked', t('Most asked'), t('The keys with the most requests first')], ['denied', t('Most denied'), t('The keys with the most denials first')]];
const listLength = 15;
const askedLength = 4 * listLength; // more than are listed: those of one value are one item
const mostDenied = 3; // keys that are offered while none is chosen
const slowPolls = 3; // what changes by itself less often is asked for at every third poll

export function open(root, context) {
	let state = {};
	let polls = 0;
	let limited = []; // rules
	let actions = true;

	const scope = segmented(t('Scope'), scopes, (value) => change({ scope: value }));
	const ruleChoice = el('select', { 'aria-label': t('Rule'), name: 'rule', onchange: () => change({ rule: ruleChoice.value }) });
	const ranking = newRanking();
	const inspector = newInspector();
	const audit = newAudit();
	const since = el('span.muted.small', { title: t('Keys are counted in spans of a minute: this one, and the one before. On a busy daemon a sample stands for all.') });

	root.append(
		el('div.toolbar', el('div.rule-choice', ruleChoice), scope, since),
		el('div.keys-columns', ranking.node, inspector.node),
		audit.node);

	function change(part) {
		state = { ...state, ...part };
		show();
		remember();
		polls = 0;
		context.pollNow();
	}

	function remember() {
		context.remember(parameters());
	}

	const parameters = (part) => {
		const all = { ...state, ...part };
		return { rule: all.rule, scope: all.scope === 'all' ? 'all' : '', by: all.by === 'denied' ? 'denied' : '', key: all.key, keyrule: all.keyrule, limit: all.limit };
	};

	function show() {
		scope.set(state.scope);
		ranking.show();
		showRuleChoice();
		inspector.show();
	}

	function showRuleChoice() {
		const options = [['', t('All rules')], ...limited.map(({ name }) => [name, name]), [requestLimits, t('limits in requests')]];
		if (state.rule && !options.some(([value]) => value === state.rule)) options.push([state.rule, state.rule]);
		reconcile(ruleChoice, options, ([value]) => value, ([value, text]) => el('option', { value }, text), () => {});
		ruleChoice.value = state.rule;
	}

	// newRanking lists keys with how often they asked, and were denied, in one of the two orders.
	function newRanking() {
		const order = segmented(t('Order'), orders, (by) => change({ by }));
		const list = el('ol.ranking');
		const head = el('div.rank-head.small', el('span.legend-item.accent', t('asked')), el('span.legend-item.denied', t('denied')));
		const total = el('p.muted.small.more', { title: t('A key that is not listed has at most so many. Numbers with ≥ may be higher: the key was not in the list all the time.') });
		const empty = el('div.empty', { hidden: true });
		const node = card(t('Top keys'), el('div.end', order), head, list, empty, total);
		function set(top) {
			const { totals } = top, groups = groupsOf(top.keys).slice(0, listLength), keys = groups.map(([first]) => first);
			const most = Math.max(1, ...keys.map((k) => k.asked.guaranteed));
			reconcile(list, groups, ([first]) => identity(first), newKey, (item, group) => updateKey(item, group, most, totals));
			setText(total, top.enabled && top.total ? t('{a} asked and {d} denied in all', { a: compact(totals.asked), d: compact(totals.denied) }) + (top.floor ? t('; others {by} at most {m}', { by: word(top.by), m: compact(top.floor) }) : '') : '');
			const none = keys.length === 0;
			head.hidden = none;
			if (!top.enabled) setEmpty(empty, none, t('Top keys are off'), t('This daemon runs with --top-keys 0.'));
			else if (top.by === 'denied') setEmpty(empty, none, t('No denials'), t('In the last minutes no key was over its limit.'));
			else setEmpty(empty, none, t('No requests'), t('Keys appear here with their first decision.'));
			node.dataset.ranking = top.by;
		}
		return { node, set, show: () => order.set(state.by) };
	}

	const identity = (k) => JSON.stringify([k.rule, k.limit, k.key, k.key_base64]);

	// groupsOf puts keys together that differ only in their names, as rpm=acme and tpm=acme do: they are of one caller.
	function groupsOf(keys) {
		const groups = new Map();
		for (const k of keys) {
			const value = isWhole(k) && k.rule ? k.key.split('|').map((entry) => entry.replace(/^[^=]*=/, '')).join('|') : '';
			const id = value || `${groups.size} alone`;
			groups.set(id, [...groups.get(id) ?? [], k]);
		}
		return [...groups.values()];
	}

	const isWhole = (k) => !k.key_base64 && !k.truncated;
	const linkOf = (k) => address('keys', parameters(targetOf(k)));

	function newKey([k]) {
		const bars = [shareBar('accent'), shareBar('denied')];
		const body = [
			el('span.rank-key', keyNode(k.key_base64 ? atobText(k.key_base64) : k.key), k.truncated ? el('span.tag', t('shortened')) : null),
			...['asked', 'denied'].map((by) => el('span.rank-count', { 'data-count': by }, el('b'), el('span.muted'))),
			el('span.rank-rule.muted', k.rule === '' ? limitText(k.limit) || t('limits in requests') : breakable(k.rule)),
			el('span.rank-bars', bars),
		];
		const item = el('li', isWhole(k) ? el('a.rank', { href: linkOf(k) }, body) : el('div.rank', body), el('div.rank-others'));
		item.bars = bars;
		return item;
	}

	// updateKey shows both numbers of a key. One that is not in a list is unknown, and small.
	function updateKey(item, [k, ...others], most, totals) {
		['asked', 'denied'].forEach((by, i) => {
			const n = k[by];
			const [count, about] = item.querySelectorAll('.rank-count')[i].children;
			setText(count, boundText(n));
			count.classList.toggle('zero', !n.guaranteed);
			setText(about, n.guaranteed ? `${percent(n.guaranteed / totals[by])}${by === 'denied' && k.shadowed ? t(', {n} shadow', { n: k.shadowed }) : ''}` : '');
			item.bars[i].set(n.guaranteed / most);
		});
		item.classList.toggle('selected', [k, ...others].some((one) => one.key === state.key));
		const link = item.firstChild;
		if (link.href !== undefined) link.href = linkOf(k);
		reconcile(item.lastChild, others, identity, (one) => el('a.chip.mono', {}, breakable(one.rule), el('span')), (chip, one) => {
			chip.href = linkOf(one);
			chip.title = t('{key}: {a} asked, {d} denied', { key: one.key, a: boundText(one.asked), d: boundText(one.denied) });
			setText(chip.lastChild, one.denied.guaranteed ? ` ${t('{n} denied', { n: one.denied.guaranteed })}` : '');
		});
	}

	const targetOf = (k) => (k.rule === '' ? { key: k.key, keyrule: '', limit: k.limit ?? '' } : { key: k.key, keyrule: k.rule, limit: '' });

	// newOffer lists the keys that are denied the most, to choose one.
	function newOffer() {
		const list = el('ol.offer');
		const offers = el('div.offers', { hidden: true }, el('p.field-label', t('Most denied')), list);
		const node = el('div.empty', el('strong', t('No key chosen')), t('Choose one of the list, or write one: its state under each rule is shown here.'), offers);
		return {
			node,
			set(keys) {
				reconcile(list, keys.filter((k) => isWhole(k) && k.denied.guaranteed).slice(0, mostDenied), identity,
					(k) => el('li', el('a', { href: linkOf(k) }, keyNode(k.key)), el('span.rank-rule', breakable(k.rule || limitText(k.limit))), el('span')),
					(item, k) => setText(item.lastChild, t('{d} of {a} denied', { d: boundText(k.denied), a: boundText(k.asked) })));
				offers.hidden = list.children.length === 0;
			},
		};
	}

	function newInspector() {
		const offer = newOffer();
		const key = el('input.mono', { name: 'key', spellcheck: 'false', autocomplete: 'off', placeholder: t('42, or user=42') });
		const results = el('div.results');
		const known = el('div.states');
		const idle = el('div.states');
		const idleTitle = el('summary');
		const folded = el('details.folded', idleTitle, idle); // where nothing is known of the key
		const problem = el('p.problem', { role: 'alert', hidden: true });
		const clear = el('button.ghost.end', { type: 'button', onclick: () => change({ key: '', keyrule: '', limit: '' }) }, t('clear'));
		const form = el('form.inspect-form', { onsubmit: submit }, el('div.grow', field(t('Key'), key)), el('button', { type: 'submit' }, t('Inspect')));
		const node = card(t('Inspector'), clear, form, problem, results);
		node.classList.add('inspector');

		function submit(event) {
			event.preventDefault();
			change({ key: key.value, keyrule: state.rule === requestLimits ? '' : state.rule, limit: '' });
		}

		function show() {
			if (document.activeElement !== key) key.value = state.key;
			clear.hidden = !state.key;
			if (results.dataset.for !== target()) {
				results.dataset.for = target();
				known.replaceChildren();
				idle.replaceChildren();
				folded.open = false;
				results.replaceChildren(state.key ? el('p.muted', t('Asking …')) : offer.node);
			}
		}

		const target = () => JSON.stringify([state.key, state.keyrule, state.limit]);

		async function poll() {
			const mine = target();
			let answer;
			if (!state.key) {
				offer.set((await get('v1/top', { ...topQuery(), by: 'denied', n: listLength })).keys);
				return;
			}
			try {
				answer = await get('v1/inspect', { key: state.key, ...(state.limit ? { limit: state.limit } : state.keyrule ? { rule: state.keyrule } : {}) });
			} catch (error) {
				if (!(error instanceof APIError) || error.status === 0 || error.status === 401) throw error;
				if (mine === target()) fail(error.message);
				return;
			}
			if (mine !== target()) return;
			problem.hidden = true;
			actions = answer.actions;
			showStates(answer);
		}

		function fail(text) {
			setText(problem, text);
			problem.hidden = false;
			results.replaceChildren();
		}

		function showStates(answer) {
			if (answer.states.length === 0) {
				results.replaceChildren(el('div.empty', el('strong', t('No such key')), t('It has the form of no rule’s keys. Write it as the rule does: user=42, or its values alone.')));
				return;
			}
			if (!known.isConnected) results.replaceChildren(known, folded);
			const states = answer.states.map((s) => ({ ...s, seen: answer.seen.find((seen) => seen.rule === (s.rule ?? '') && (s.rule || seen.limit === s.limit)) }));
			const isUnused = (s) => !s.override && s.would_allow && !s.decision.reset_after;
			const isIdle = (s) => states.length > 1 && !s.seen && [s, ...s.also ?? []].every(isUnused);
			const rest = states.filter(isIdle);
			for (const [node, list] of [[known, states.filter((s) => !isIdle(s))], [idle, rest]]) {
				reconcile(node, list, (s) => JSON.stringify([s.of ?? s.rule, s.of ? '' : s.limit, s.key]), newState, (card, s) => card.set(s));
			}
			folded.hidden = rest.length === 0;
			setText(idleTitle, answer.more ? t('Nothing is charged to it under {n} rule and more|Nothing is charged to it under {n} rules and more', { n: rest.length })
				: t('Nothing is charged to it under {n} rule|Nothing is charged to it under {n} rules', { n: rest.length }));
		}

		function newState(first) {
			const gauge = shareBar('accent');
			const left = el('b', { 'data-figure': 'remaining' });
			const tag = el('span');
			const facts = el('dl.state-facts');
			const last = el('div.last');
			const acting = el('div.acts');
			const rule = el('strong');
			const limit = el('code');
			const card = el('article.state',
				el('header', rule, first.mode === 'shadow' ? el('span.tag.shadow', t('shadow')) : null, tag, limit),
				el('p.state-key', keyNode(first.key)), el('div.gauge', left, gauge), facts, last, acting);
			card.set = (s) => {
				const { decision: d, seen } = s;
				const override = s.override ?? null;
				const banned = override?.limit === 'ban';
				const free = override?.limit === 'unlimited';
				setText(rule, s.rule ?? t('limit in requests'));
				setText(limit, limitText(s.limit));
				setText(left, banned ? t('banned') : free ? t('unlimited') : leftText(d));
				gauge.set(banned ? 0 : free ? 1 : d.limit ? d.remaining / d.limit : 0);
				card.classList.toggle('out', !s.would_allow);
				tag.replaceChildren(...(override ? [overrideTag(override)] : []));
				const list = [[t('Next request'), s.would_allow ? t('would be allowed') : s.retry_after === null ? t('denied for good') : t('denied for {time}', { time: seconds(s.retry_after) })]];
				if (!banned && !free) list.push([t('Full again'), d.reset_after ? t('in {time}', { time: seconds(d.reset_after) }) : t('is full')]);
				if (override) list.push(...overrideFacts(override));
				for (const also of s.also ?? []) list.push([el('code', also.rule), also.override?.limit === 'unlimited' ? t('unlimited') : [leftText(also.decision), ' · ', el('code', limitText(also.limit))]]);
				if (seen?.asked) list.push([t('Asked lately'), countText(seen.asked)]);
				if (seen?.denied) list.push([t('Denied lately'), countText(seen.denied)]);
				facts.replaceChildren(...list.map(([name, value]) => el('div', el('dt', name), el('dd', value))));
				last.replaceChildren(...(seen?.last?.length ? [lastDecisions(seen.last)] : []));
				acting.hidden = !actions;
				reconcile(acting, actionsOf(s), (a) => a[0], ([name, label, kind]) => el('button', { type: 'button', name, class: kind, onclick: () => acting.works[name]() }, label), () => {});
				acting.works = Object.fromEntries(actionsOf(s).map(([name, , , work]) => [name, work]));
			};
			return card;
		}

		// actionsOf returns what can be done to a key in this state: [name, label, class, work] each.
		function actionsOf(s) {
			const own = s.override;
			const target = { rule: s.rule, key: s.key };
			const whole = { ...target, rule: s.of ?? s.rule }; // a ban is of all limits, another limit of the one that is shown
			const settles = !s.rule || limited.find((r) => r.name === s.rule)?.settings?.some(({ name }) => name === 'settle');
			return [
				...(own ? [['end', own.limit === 'ban' ? t('End the ban') : t('End the override'), 'danger', () => endOverride(context, own)]] : []),
				...(own ? [['change', t('Change'), '', () => setOverride(context, { rule: own.rule, key: own.key, limit: own.limit }, own)]] : []),
				...(s.rule && !own ? [['override', t('Override'), '', () => setOverride(context, target, null)]] : []),
				...(s.rule && !own ? [['ban', t('Ban'), '', () => setOverride(context, { ...whole, limit: 'ban', for: '1h' }, null)]] : []),
				['refund', t('Refund'), '', () => refund(s)],
				...(settles ? [['settle', t('Settle'), '', () => settle(s)]] : []),
				['reset', t('Reset'), 'danger', () => reset(s)],
			];
		}

		const named = (s) => ({ key: el('b', keyNode(s.key)), rule: s.rule ? el('b', s.of ?? s.rule) : el('code', limitText(s.limit)), left: el('b', leftText(s.decision)) });
		const noUndo = () => el('span.muted', ` ${t('It cannot be undone.')}`);

		// actOn asks about an action on what is charged to a key, and says what is left after it.
		function actOn(s, action, call, done) {
			const query = s.rule ? { rule: s.of ?? s.rule, key: s.key } : { limit: s.limit, key: s.key };
			act(context, {
				...action, work: (reason) => call({ ...query, reason }),
				done: (after) => {
					const values = { done, left: leftText(after.decision) };
					return [after.override?.limit === 'ban' ? t('{done}: {left}, and still banned.', values) : t('{done}: {left}.', values)];
				},
			});
		}

		const unitsInput = (value, min) => el('input', { type: 'number', min, step: '1', value, name: 'units', required: true });

		function refund(s) {
			const units = unitsInput('1', '1');
			actOn(s, {
				title: t('Refund units?'), yes: t('Yes, refund'), kind: 'primary', fields: el('div.units', field(t('Units'), units)),
				will: () => (units.validity.valid ? [...tn('This will refund up to {n} unit to {key} under {rule}. Now: {left}.|This will refund up to {n} units to {key} under {rule}. Now: {left}.', { ...named(s), n: Number(units.value) }), noUndo()] : null),
			}, (query) => post('v1/keys', { ...query, units: units.value }), t('Refunded'));
		}

		function settle(s) {
			const units = unitsInput('0', '0');
			const id = el('input.mono', { name: 'id', spellcheck: 'false', autocomplete: 'off', required: true });
			actOn(s, {
				title: t('Settle a take?'), yes: t('Yes, settle'), kind: 'primary', fields: el('div.override-form', field(t('ID of the take'), id), field(t('Units that were used'), units)),
				will: () => (units.validity.valid && id.value ? tn('This will make the take {id} from {key} under {rule} cost {n} unit: less than it took is refunded, more is charged. Now: {left}. It can be settled again.|This will make the take {id} from {key} under {rule} cost {n} units: less than it took is refunded, more is charged. Now: {left}. It can be settled again.',
					{ ...named(s), id: el('code', id.value), n: Number(units.value) }) : null),
			}, (query) => post('v1/keys', { ...query, settle: id.value, units: units.value }), t('Settled'));
		}

		function reset(s) {
			actOn(s, {
				title: t('Reset this key?'), yes: t('Yes, reset it'), kind: 'danger',
				will: () => [...tn('This will refund all that is charged to {key} under {rule}. Now: {left}; then nothing is charged.', named(s)), noUndo()],
			}, (query) => remove('v1/keys', query), t('Reset'));
		}

		return { node, show, poll };
	}

	function newAudit() {
		const body = el('tbody');
		const empty = el('div.empty', el('strong', t('No actions yet')), t('Refunds, resets and changes of overrides, done or refused, are listed here and in the audit log.'));
		const list = table('audit', [t('When'), t('Actor'), t('Action'), t('Key'), t('Change'), t('Reason'), t('Result')], body);
		const node = card(t('Recent actions'), null, list, empty);
		function set(entries) {
			empty.hidden = entries.length > 0;
			list.hidden = entries.length === 0;
			reconcile(body, entries.slice(0, 50), (e) => `${e.id} ${e.result}`, auditRow, () => {});
		}
		return { node, set };
	}

	return {
		update(p) {
			state = { rule: p.get('rule') ?? '', scope: p.get('scope') === 'all' ? 'all' : 'daemon', by: p.get('by') === 'denied' ? 'denied' : 'asked', key: p.get('key') ?? '', keyrule: p.get('keyrule') ?? '', limit: p.get('limit') ?? '' };
			polls = 0;
			show();
		},
		refresh: () => { polls = 0; },
		async poll() {
			const slow = polls++ % slowPolls === 0;
			const query = topQuery();
			const top = await get('v1/top', query);
			if (JSON.stringify(query) === JSON.stringify(topQuery())) { // no other list was chosen meanwhile
				ranking.set(top);
				setText(since, top.enabled ? t('since {time}', { time: time(top.since) }) + t(', ') + (top.sampling > 1 ? t('1 in {d} sampled', { d: String(top.sampling) }) : t('every decision counted')) : '');
				root.dataset.time = top.time;
			}
			await inspector.poll();
			if (slow) await pollSlow();
			await context.pollHealth();
		},
	};

	function topQuery() {
		return { scope: state.scope, by: state.by, n: askedLength, ...(state.rule ? { rule: state.rule === requestLimits ? '' : state.rule } : {}) };
	}

	async function pollSlow() {
		const [rules, log, live] = await Promise.all([get('rules'), get('v1/audit'), get('v1/live', { rules: 0 })]);
		scope.hidden = live.store.kind !== 'redis';
		limited = rules.rules.filter((r) => !r.unlimited);
		showRuleChoice();
		audit.set(log.entries);
	}
}

// boundText is a number of which at least so much is known, and – where nothing is.
const boundText = (n) => (n.guaranteed === n.count ? integer(n.count) : n.guaranteed ? `≥${integer(n.guaranteed)}` : '–');
const leftText = (d) => t('{a} of {b} left', { a: d.remaining, b: d.limit });
const countText = (c) => (c.count === c.guaranteed ? integer(c.count) : t('{a} to {b}', { a: c.guaranteed, b: c.count }));

// lastDecisions draws the last decisions, the newest first.
function lastDecisions(list) {
	return el('div', el('p.field-label', t('Last decisions here')),
		el('ol.decisions', list.map((d) => el('li', { class: `decision decision-${d.outcome}` },
			el('span.muted', time(d.time)), el('span', word(d.outcome)), el('span.muted', t('cost {c}, {r} left', { c: d.cost, r: d.remaining }))))));
}

function auditRow(e) {
	const target = e.target ?? {};
	const part = e.action.startsWith('override.') ? (s) => s?.limit ?? t('the rule') : (s) => s?.remaining ?? '?';
	const ofRule = e.action.startsWith('candidate.');
	const change = e.before || e.after ? `${part(e.before)} → ${part(e.after)}` : ofRule ? target.limit ?? '' : '';
	const kind = { done: 'accent', refused: 'warn', unknown: 'warn', failed: 'denied' }[e.result] ?? '';
	return el('tr', null,
		el('td.nowrap', time(e.time)),
		el('td', e.actor?.name || word(e.actor?.via ?? 'unknown'), el('span.sub.muted', e.actor?.address ?? '')),
		el('td.nowrap', word(e.action), el('span.sub.muted', e.api === 'admin' ? '' : e.api)),
		el('td', ofRule ? '' : keyNode(target.key ?? target.key_base64 ?? ''), el('span.sub.muted', breakable(target.rule ?? target.limit ?? ''))),
		el('td.change', change, el('span.sub.muted', e.units ? t('{n} unit|{n} units', { n: e.units }) : e.after?.expires ? t('until {time}', { time: time(e.after.expires) }) : '')),
		el('td.reason', e.reason ?? ''),
		el('td', el('span', { class: `tag ${kind}` }, word(e.result)), el('span.sub.muted', e.detail ?? '')));
}

const atobText = (text) => { try { return atob(text); } catch { return text; } };

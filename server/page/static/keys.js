// Keys: which keys ask the most and are denied the most, one key in detail, and the
// actions on it with their record.

import { actionForm, overrideFacts, overrideTag } from './actions.js';
import { APIError, get, post, remove } from './api.js';
import { address } from './address.js';
import { shareBar } from './chart.js';
import { card, el, field, keyNode, reconcile, segmented, setEmpty, setText, table } from './dom.js';
import { compact, integer, percent, plural, seconds, time } from './format.js';
import { limitText } from './live.js';

const scopes = [['daemon', 'This daemon'], ['all', 'All daemons', 'All daemons on the same Redis']];
const requestLimits = '-'; // stands for limits in requests, which have no rule
const orders = [['asked', 'Most asked', 'The keys with the most requests first'], ['denied', 'Most denied', 'The keys with the most denials first']];
const listLength = 15;
const lookupLength = 200; // more than are listed, to find both numbers of a key
const slowPolls = 3; // what changes by itself less often is asked for at every third poll

export function open(root, context) {
	let state = {};
	let polls = 0;
	let known = []; // names of rules
	let actions = true;

	const scope = segmented('Scope', scopes, (value) => change({ scope: value }));
	const ruleChoice = el('select', { 'aria-label': 'Rule', name: 'rule', onchange: () => change({ rule: ruleChoice.value }) });
	const ranking = newRanking();
	const inspector = newInspector();
	const audit = newAudit();
	const since = el('span.muted.small', { title: 'Keys are counted in spans of a minute: this one, and the one before. On a busy daemon a sample stands for all.' });

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
		const options = [['', 'All rules'], ...known.map((name) => [name, name]), [requestLimits, 'limits in requests']];
		if (state.rule && !options.some(([value]) => value === state.rule)) options.push([state.rule, state.rule]);
		reconcile(ruleChoice, options, ([value]) => value, ([value, text]) => el('option', { value }, text), () => {});
		ruleChoice.value = state.rule;
	}

	// newRanking lists keys with how often they asked, and were denied, in one of the two orders.
	function newRanking() {
		const order = segmented('Order', orders, (by) => change({ by }));
		const list = el('ol.ranking');
		const head = el('div.rank-head.muted.small', el('span', 'asked'), el('span', 'denied'));
		const total = el('p.muted.small.more', { title: 'A key that is not listed has at most so many. Numbers with ≥ may be higher: the key was not in the list all the time.' });
		const empty = el('div.empty', { hidden: true });
		const node = card('Top keys', el('div.end', order), head, list, empty, total);
		function set(asked, denied) {
			const first = state.by === 'denied' ? denied : asked;
			const keys = first.keys.slice(0, listLength).map((k) => ({ ...k, asked: find(asked, k), denied: find(denied, k) }));
			const most = Math.max(1, ...keys.map((k) => Math.max(k.asked?.guaranteed ?? 0, k.denied?.guaranteed ?? 0)));
			reconcile(list, keys, identity, newKey, (item, k) => updateKey(item, k, most));
			setText(total, first.enabled && first.total ? `${compact(asked.total)} asked and ${compact(denied.total)} denied in all${first.floor ? `; others ${state.by} at most ${compact(first.floor)}` : ''}` : '');
			const none = keys.length === 0;
			head.hidden = none;
			if (!first.enabled) setEmpty(empty, none, 'Top keys are off', 'This daemon runs with --top-keys 0.');
			else if (state.by === 'denied') setEmpty(empty, none, 'No denials', 'In the last minutes no key was over its limit.');
			else setEmpty(empty, none, 'No requests', 'Keys appear here with their first decision.');
			node.dataset.ranking = state.by;
		}
		return { node, set, show: () => order.set(state.by) };
	}

	const identity = (k) => JSON.stringify([k.rule, k.limit, k.key, k.key_base64]);
	// find returns the numbers of a key. Where the whole list is known, one that is not in it has none.
	const find = (top, k) => top.keys.find((other) => identity(other) === identity(k))
		?? (top.floor === 0 && top.keys.length < lookupLength ? { count: 0, guaranteed: 0 } : undefined);

	function newKey(k) {
		const bars = [shareBar('accent'), shareBar('denied')];
		const whole = !k.key_base64 && !k.truncated;
		const body = [
			el('span.rank-key', keyNode(k.key_base64 ? atobText(k.key_base64) : k.key), k.truncated ? el('span.tag', 'shortened') : null),
			...['asked', 'denied'].map((by) => el('span.rank-count', { 'data-count': by }, el('b'), el('span.muted'))),
			el('span.rank-rule.muted', k.rule === '' ? limitText(k.limit) || 'limits in requests' : k.rule),
			el('span.rank-bars', bars),
		];
		const item = el('li', whole ? el('a.rank', { href: address('keys', parameters(targetOf(k))) }, body) : el('div.rank', body));
		item.bars = bars;
		return item;
	}

	// updateKey shows both numbers of a key. One that is not in a list is unknown, and small.
	function updateKey(item, k, most) {
		[k.asked, k.denied].forEach((n, i) => {
			const [count, about] = item.querySelectorAll('.rank-count')[i].children;
			setText(count, !n ? '–' : n.guaranteed === n.count ? integer(n.count) : `≥${integer(n.guaranteed)}`);
			count.classList.toggle('zero', !n?.count);
			setText(about, n?.count ? `${percent(n.share)}${i === 1 && n.shadowed ? `, ${integer(n.shadowed)} shadow` : ''}` : '');
			item.bars[i].set((n?.guaranteed ?? 0) / most);
		});
		item.classList.toggle('selected', k.key === state.key);
		const link = item.firstChild;
		if (link.href !== undefined) link.href = address('keys', parameters(targetOf(k)));
	}

	const targetOf = (k) => (k.rule === '' ? { key: k.key, keyrule: '', limit: k.limit ?? '' } : { key: k.key, keyrule: k.rule, limit: '' });

	function newInspector() {
		const key = el('input.mono', { name: 'key', spellcheck: 'false', autocomplete: 'off', placeholder: '42, or user=42' });
		const results = el('div.results');
		const known = el('div.states');
		const idle = el('div.states');
		const idleTitle = el('summary');
		const folded = el('details.acts', idleTitle, idle); // where nothing is known of the key
		const problem = el('p.problem', { role: 'alert', hidden: true });
		const note = el('p.done', { role: 'status', hidden: true });
		const clear = el('button.ghost.end', { type: 'button', onclick: () => change({ key: '', keyrule: '', limit: '' }) }, 'clear');
		const form = el('form.inspect-form', { onsubmit: submit }, el('div.grow', field('Key', key)), el('button', { type: 'submit' }, 'Inspect'));
		const node = card('Inspector', clear, form, problem, note, results);
		node.classList.add('inspector');

		function submit(event) {
			event.preventDefault();
			note.hidden = true;
			change({ key: key.value, keyrule: state.rule === requestLimits ? '' : state.rule, limit: '' });
		}

		function show() {
			if (document.activeElement !== key) key.value = state.key;
			clear.hidden = !state.key;
			if (results.dataset.for !== target()) {
				results.dataset.for = target();
				note.hidden = true;
				known.replaceChildren();
				idle.replaceChildren();
				folded.open = false;
				results.replaceChildren(state.key ? el('p.muted', 'Asking …') : el('div.empty',
					el('strong', 'No key chosen'), 'Choose one of the list, or write one: its state under each rule is shown here.'));
			}
		}

		const target = () => JSON.stringify([state.key, state.keyrule, state.limit]);

		async function poll() {
			if (!state.key) return;
			const mine = target();
			let answer;
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
				results.replaceChildren(el('div.empty', el('strong', 'No such key'), 'It has the form of no rule’s keys. Write it as the rule does: user=42, or its values alone.'));
				return;
			}
			if (!known.isConnected) results.replaceChildren(known, folded);
			const states = answer.states.map((s) => ({ ...s, seen: answer.seen.find((seen) => seen.rule === (s.rule ?? '') && (s.rule || seen.limit === s.limit)) }));
			const isIdle = (s) => states.length > 1 && !s.seen && !s.override && s.would_allow && !s.decision.reset_after;
			const rest = states.filter(isIdle);
			for (const [node, list] of [[known, states.filter((s) => !isIdle(s))], [idle, rest]]) {
				reconcile(node, list, (s) => JSON.stringify([s.rule, s.limit, s.key]), newState, (card, s) => card.set(s));
			}
			folded.hidden = rest.length === 0;
			setText(idleTitle, `Nothing is charged to it under ${plural(rest.length, 'rule')}${answer.more ? ' and more' : ''}`);
		}

		function newState(first) {
			const gauge = shareBar('accent');
			const left = el('b', { 'data-figure': 'remaining' });
			const tag = el('span');
			const facts = el('dl.state-facts');
			const last = el('div.last');
			const acting = newActions(first);
			let override = null;
			const ending = newForm('End this override', {}, [['End it', 'danger', async (reason) => {
				const { rule, key, limit } = override;
				const ended = await remove('v1/overrides', { rule, key, reason });
				say(`Ended: ${limit} of ${key}.`);
				return ended;
			}]]);
			const card = el('article.state',
				el('header', el('strong', first.rule ?? 'limit in requests'), first.mode === 'shadow' ? el('span.tag.shadow', 'shadow') : null, tag, el('code', limitText(first.limit))),
				el('p.state-key', keyNode(first.key)), el('div.gauge', left, gauge), facts, last, acting);
			card.set = (s) => {
				const { decision: d, seen } = s;
				override = s.override ?? null;
				const banned = override?.limit === 'ban';
				const free = override?.limit === 'unlimited';
				setText(left, banned ? 'banned' : free ? 'unlimited' : `${integer(d.remaining)} of ${integer(d.limit)} left`);
				gauge.set(banned ? 0 : free ? 1 : d.limit ? d.remaining / d.limit : 0);
				card.classList.toggle('out', !s.would_allow);
				tag.replaceChildren(...(override ? [overrideTag(override)] : []));
				const list = [['Next request', s.would_allow ? 'would be allowed' : s.retry_after === null ? 'denied for good' : `denied for ${seconds(s.retry_after)}`]];
				if (!banned && !free) list.push(['Full again', d.reset_after ? `in ${seconds(d.reset_after)}` : 'is full']);
				if (override) list.push(...overrideFacts(override));
				if (seen?.asked) list.push(['Asked lately', countText(seen.asked)]);
				if (seen?.denied) list.push(['Denied lately', countText(seen.denied)]);
				facts.replaceChildren(...list.map(([name, value]) => el('div', el('dt', name), el('dd', value))));
				last.replaceChildren(...(seen?.last?.length ? [lastDecisions(seen.last)] : []));
				acting.hidden = !actions;
				if (!actions || !override) ending.remove();
				else if (!ending.isConnected) acting.before(ending);
			};
			return card;
		}

		function say(text) {
			setText(note, text);
			note.hidden = false;
		}

		function newForm(title, fields, buttons) {
			return actionForm(context, title, fields, buttons, () => { polls = 0; context.pollNow(); });
		}

		// newActions refunds and resets.
		function newActions(s) {
			const units = el('input', { type: 'number', min: '1', step: '1', value: '1', name: 'units' });
			const query = s.rule ? { rule: s.rule, key: s.key } : { limit: s.limit, key: s.key };
			const act = (work, done) => async (reason) => {
				const after = await work({ ...query, reason });
				say(`${done}: ${integer(after.decision.remaining)} of ${integer(after.decision.limit)} left${after.override?.limit === 'ban' ? ', and still banned' : ''}.`);
				return after;
			};
			return newForm('Refund or reset', { beside: el('div.units', field('Units', units)) }, [
				['Refund', '', act((q) => post('v1/keys', { ...q, units: units.value }), 'Refunded')],
				['Reset', 'danger', act((q) => remove('v1/keys', q), 'Reset')],
			]);
		}

		return { node, show, poll };
	}

	function newAudit() {
		const body = el('tbody');
		const empty = el('div.empty', el('strong', 'No actions yet'), 'Refunds, resets and changes of overrides, done or refused, are listed here and in the audit log.');
		const list = table('audit', ['When', 'Actor', 'Action', 'Key', 'Change', 'Reason', 'Result'], body);
		const node = card('Recent actions', null, list, empty);
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
		async poll() {
			const slow = polls++ % slowPolls === 0;
			const query = topQuery();
			const [byAsked, byDenied] = await Promise.all(['asked', 'denied'].map((by) => get('v1/top', { ...query, by, n: lookupLength })));
			if (JSON.stringify(query) === JSON.stringify(topQuery())) { // no other scope or rule was chosen meanwhile
				ranking.set(byAsked, byDenied);
				setText(since, byAsked.enabled ? `since ${time(byAsked.since)}, ${byAsked.sampling > 1 ? `1 in ${byAsked.sampling} sampled` : 'every decision counted'}` : '');
				root.dataset.time = byAsked.time;
			}
			await inspector.poll();
			if (slow) await pollSlow();
			await context.pollHealth();
		},
	};

	function topQuery() {
		return { scope: state.scope, ...(state.rule ? { rule: state.rule === requestLimits ? '' : state.rule } : {}) };
	}

	async function pollSlow() {
		const [rules, log, live] = await Promise.all([get('rules'), get('v1/audit'), get('v1/live', { rules: 0 })]);
		scope.hidden = live.store.kind !== 'redis';
		known = rules.rules.filter((r) => !r.unlimited).map((r) => r.name);
		showRuleChoice();
		audit.set(log.entries);
	}
}

const countText = (c) => (c.count === c.guaranteed ? integer(c.count) : `${integer(c.guaranteed)} to ${integer(c.count)}`);

// lastDecisions draws the last decisions, the newest first.
function lastDecisions(list) {
	return el('div', el('p.field-label', 'Last decisions here'),
		el('ol.decisions', list.map((d) => el('li', { class: `decision decision-${d.outcome}` },
			el('span.muted', time(d.time)), el('span', d.outcome), el('span.muted', `cost ${integer(d.cost)}, ${integer(d.remaining)} left`)))));
}

function auditRow(e) {
	const target = e.target ?? {};
	const part = e.action.startsWith('override.') ? (s) => s?.limit ?? 'the rule' : (s) => s?.remaining ?? '?';
	const change = e.before || e.after ? `${part(e.before)} → ${part(e.after)}` : '';
	const kind = { done: 'accent', refused: 'warn', unknown: 'warn', failed: 'denied' }[e.result] ?? '';
	return el('tr', null,
		el('td.nowrap', time(e.time)),
		el('td', e.actor?.name || (e.actor?.via ?? 'unknown'), el('span.sub.muted', e.actor?.address ?? '')),
		el('td.nowrap', e.action, el('span.sub.muted', e.api === 'admin' ? '' : e.api)),
		el('td', keyNode(target.key ?? target.key_base64 ?? ''), el('span.sub.muted', target.rule ?? target.limit ?? '')),
		el('td.change', change, el('span.sub.muted', e.units ? plural(e.units, 'unit') : e.after?.expires ? `until ${time(e.after.expires)}` : '')),
		el('td.reason', e.reason ?? ''),
		el('td', el('span', { class: `tag ${kind}` }, e.result), el('span.sub.muted', e.detail ?? '')));
}

const atobText = (text) => { try { return atob(text); } catch { return text; } };

// Live: what the daemon does now and did lately.

import { get } from './api.js';
import { latencyRange, rateChart, shareBar, sparkline } from './chart.js';
import { breakable, card, el, reconcile, segmented, setAttribute, setEmpty, setText, table } from './dom.js';
import { bytes, compact, integer, percent, rate, seconds, time } from './format.js';
import { t, word } from './language.js';

const windows = [['2m', t('2 min'), t('The last two minutes, by the second')], ['1h', t('1 hour'), t('The last hour, by ten seconds')], ['1d', t('1 day'), t('The last day, by five minutes')]];
const storeNames = { memory: t('Memory'), redis: 'Redis', postgresql: 'PostgreSQL', mysql: 'MySQL', sqlite: 'SQLite' };
const scopes = [['daemon', t('This daemon')], ['all', t('All daemons'), t('All daemons on the same Redis')]];
const mostRows = 200;
const slow = 0.1; // seconds that a call should not take: callers wait for it

// The columns of the table of rules: a title, and the order by which the daemon sorts.
const columns = [
	{ title: t('Rule'), sort: 'name' },
	{ title: t('Trend') },
	{ title: t('Decisions/s'), sort: 'decisions', numeric: true },
	{ title: t('Denied'), sort: 'denied', numeric: true, counted: true, sum: true },
	{ title: t('Denied share'), sort: 'denied_share', numeric: true, counted: true },
	{ title: t('Shadow share'), sort: 'shadow_share', numeric: true, counted: true },
	{ title: t('Errors'), sort: 'errors', numeric: true, counted: true, sum: true },
];

// limitText is a limit without its name, to show. Its state is found by the whole text only.
export const limitText = (text) => (text ?? '').replace(/ name=("(?:\\.|[^"\\])*"|\S+)/, '');

export function open(root, context) {
	let state = {};
	let typing = 0;

	const windowChoice = segmented(t('Window'), windows, (window) => change({ window }));
	const scopeChoice = segmented(t('Scope'), scopes, (scope) => change({ scope }));
	const daemon = el('span.muted.daemon');
	const figures = [['decisions', t('Decisions')], ['denied', t('Denied')], ['errors', t('Errors')], ['latency', t('Latency')], ['memory', t('Memory')]].map(newFigure);
	const chart = rateChart();
	const totals = newTotals();
	const listeners = el('tbody');
	const calls = el('th.numeric', t('Calls'));
	const storeBody = el('div.facts');
	const daemons = newDaemons();
	const rows = el('tbody');
	const more = el('p.muted.more', { hidden: true });
	const none = el('div.empty', { hidden: true });
	const heads = columns.map(newHead);
	const filter = el('input', {
		type: 'search', placeholder: t('Filter rules'), 'aria-label': t('Filter rules'), name: 'filter', class: 'filter', maxlength: '200',
		oninput: () => { clearTimeout(typing); typing = setTimeout(() => change({ filter: filter.value }), 150); },
	});

	root.append(
		el('div.toolbar', windowChoice, scopeChoice, daemon),
		el('section.figures', { 'aria-label': t('Now') }, figures.map((f) => f.node)),
		el('section.card', { 'aria-label': t('Decisions a second') }, chart.node, totals.node),
		el('div.columns',
			card(t('Latency by listener'), null, table('listeners', [t('Listener'), el('th.numeric.optional', t('Connections')), calls, '>p50', el('th.numeric.optional', 'p90'), '>p99',
				el('th.wide', el('span.scale', [1e-6, 1e-3, 1].map((s) => el('span', seconds(s)))))], listeners)),
			card(t('Store'), null, storeBody)),
		daemons.node,
		card(t('Rules'), el('div.end', filter), table('rule-rows', heads.map((h) => h.node), rows), none, more));

	function newHead(column) {
		const button = column.sort
			? el('button.sort', { type: 'button', onclick: () => change({ sort: column.sort }) }, column.title) : column.title;
		return { column, node: el('th', { class: column.numeric ? 'numeric' : column.sort ? null : 'wide', scope: 'col' }, button) };
	}

	function change(part) {
		state = { ...state, ...part };
		show();
		context.remember({
			window: state.window === '2m' ? '' : state.window, scope: state.scope === 'all' ? 'all' : '',
			sort: state.sort === 'decisions' ? '' : state.sort, filter: state.filter,
		});
		context.pollNow();
	}

	function show() {
		windowChoice.set(state.window);
		scopeChoice.set(state.scope);
		const span = windows.find(([w]) => w === state.window)[1];
		setText(calls, t('Calls in {span}', { span }));
		heads.filter((h) => h.column.counted).forEach((h) => { h.node.title = t('In the last {span}', { span }); });
		heads.filter((h) => h.column.sum).forEach((h) => setText(h.node.firstChild, t('{what}, {span}', { what: h.column.title, span })));
		if (document.activeElement !== filter) filter.value = state.filter;
		for (const { column, node } of heads) setAttribute(node, 'aria-sort', column.sort === state.sort ? (column.sort === 'name' ? 'ascending' : 'descending') : null);
	}

	function showLive(live) {
		scopeChoice.hidden = live.store.kind !== 'redis';
		setText(daemon, `${live.daemon} · ${live.version} · ${t('since {time}', { time: time(live.started) })}`);
		showFigures(live);
		if (live.series.allowed?.length) chart.set(live.series);
		totals.set(live);
		showListeners(live);
		showStore(live.store);
		daemons.set(live);
		showRules(live);
		root.dataset.time = live.time;
	}

	function showFigures(live) {
		const r = live.rates;
		const perSecond = t('a second, over 10 s');
		figures[0].set(rate(r.decisions), perSecond);
		figures[1].set(rate(r.denied), perSecond + t(', ') + percent(r.decisions ? r.denied / r.decisions : 0));
		figures[2].set(rate(r.errors), perSecond, r.errors > 0 ? 'error' : '');
		const busiest = live.listeners.filter((l) => l.name !== 'admin' && l.p99 !== null).sort((a, b) => b.calls - a.calls)[0];
		if (busiest) figures[3].set(seconds(busiest.p99), t('p99 of {listener}, over {span}', { listener: busiest.name, span: windows.find(([w]) => w === state.window)[1] }), busiest.p99 >= slow ? 'slow' : '');
		else figures[3].set('–', t('no calls yet'));
		figures[4].set(bytes(live.process.heap_bytes ?? 0), t('heap, {size} held', { size: bytes(live.process.total_bytes ?? 0) }));
	}

	function showListeners(live) {
		reconcile(listeners, live.listeners, (l) => l.name,
			() => el('tr', el('th', { scope: 'row' }), el('td.numeric.optional'), el('td.numeric'), el('td.numeric'),
				el('td.numeric.optional'), el('td.numeric'), el('td.wide')),
			(row, l) => {
				const latency = (s) => (s === null ? '–' : seconds(s));
				[l.name, integer(l.connections), compact(l.calls), latency(l.p50), latency(l.p90), latency(l.p99)].forEach((text, i) => setText(row.children[i], text));
				row.children[5].classList.toggle('is-slow', l.p99 >= slow);
				row.lastChild.replaceChildren(latencyRange(l.p50, l.p90, l.p99));
			});
	}

	function showStore(store) {
		const down = store.shards.filter((s) => s.state !== 'up');
		const facts = [
			[t('Kind'), storeNames[store.kind]],
			[t('State'), store.degraded ? el('span.tag.warn', t('degraded')) : el('span.tag.accent', t('up'))],
		];
		if (store.shards.length > 0) facts.push([t('{n} shard|{n} shards', { n: store.shards.length }), shardPicture(store.shards, down)]);
		if (store.kind !== 'memory') {
			const lost = store.state_losses.reduce((sum, l) => sum + l.count, 0);
			facts.push([t('State losses since the start'), lost === 0 ? '0' : el('span.tag.denied', store.state_losses.filter((l) => l.count).map((l) => `${l.count} ${word(l.reason.replace('_', ' '))}`).join(t(', ')))]);
			facts.push([t('Failed calls since the start'), integer(store.errors)]);
			if (store.refusals) facts.push([t('Refused calls since the start'), el('span.tag.denied', integer(store.refusals))]);
		}
		const m = store.memory;
		if (m) {
			facts.push([store.kind === 'memory' ? t('Keys') : t('Fallback keys'), t('{a} of {b}', { a: m.keys, b: compact(m.max_keys) })]);
			facts.push([t('Under limits in requests'), integer(m.request_limit_keys)]);
			facts.push([t('Logs and windows'), m.max_bytes ? t('{a} of {b}', { a: bytes(m.bytes), b: bytes(m.max_bytes) }) : bytes(m.bytes)]);
			facts.push([t('Overflow decisions since the start'), m.overflow ? el('span.tag.denied', integer(m.overflow)) : '0']);
		}
		const h = store.home;
		if (h) {
			facts.push([t('Home region'), h.down ? el('span.tag.denied', word('down')) : el('span.tag.accent', t('up'))]);
			facts.push([t('Units from pools since the start'), integer(h.spent)]);
			facts.push([t('Requests that waited for home'), integer(h.waited)]);
			facts.push([t('Lots that home was asked for'), t('{lots}: {short} short, {failed} failed', { lots: h.lots, short: h.short, failed: h.failed })]);
			facts.push([t('Age of what pools held, on average'), seconds(h.lot_age)]);
			facts.push([t('Units lost on the way'), h.lost ? el('span.tag.denied', integer(h.lost)) : '0']);
		}
		storeBody.replaceChildren(...facts.map(([name, value]) => el('div.fact', el('span.muted', name), el('span', value))));
	}

	function shardPicture(shards, down) {
		if (shards.length > 64) return down.length ? el('span.tag.denied', t('{n} down', { n: down.length })) : t('all up');
		return el('span.shards', { role: 'img', 'aria-label': down.length ? t('{n} down', { n: down.length }) : t('all up') },
			shards.map((s) => el('span', { class: `shard shard-${s.state}`, title: t('Shard {shard}: {state}', { shard: String(s.shard), state: word(s.state) }) + (s.error ? t(', ') + s.error : '') })));
	}

	function showRules(live) {
		reconcile(rows, live.rules, (r) => r.name, newRow, updateRow);
		if (state.filter) setEmpty(none, live.rules.length === 0, t('No rule matches'), t('The filter is in the name of none.'));
		else setEmpty(none, live.rules.length === 0, t('No rules'), t('Rules appear here, and limits in requests with their first decision.'));
		const hidden = (live.rules_matching ?? live.rules.length) - live.rules.length;
		more.hidden = hidden <= 0;
		setText(more, t('{n} more rule; filter to see it.|{n} more rules; filter to see them.', { n: hidden }));
	}

	function newRow(rule) {
		const denied = shareBar('denied'), shadow = shareBar('shadow');
		const row = el('tr', null,
			el('th', { scope: 'row' },
				el('a.rule-link', { href: `#/keys?${new URLSearchParams({ rule: rule.name === '' ? '-' : rule.name })}` }, rule.name === '' ? t('limits in requests') : breakable(rule.name)),
				el('code.rule-limit'), el('span.tag.shadow', { hidden: true }, t('shadow'))),
			el('td.wide'), el('td.numeric'), el('td.numeric'),
			el('td.numeric.share', denied, el('span')), el('td.numeric.share', shadow, el('span')), el('td.numeric'));
		Object.assign(row, { denied, shadow });
		return row;
	}

	function updateRow(row, rule) {
		const [name, trend, decisions, denied, deniedShare, shadowShare, errors] = row.children;
		setText(name.children[1], limitText(rule.limit));
		name.children[2].hidden = rule.mode !== 'shadow';
		trend.replaceChildren(sparkline(rule.decisions ?? [], rule.denied_or_shadowed ?? []));
		setText(decisions, rate(rule.rate));
		setText(denied, compact(rule.counts.denied));
		setText(deniedShare.lastChild, percent(rule.denied_share));
		setText(shadowShare.lastChild, percent(rule.shadow_share));
		setText(errors, compact(rule.counts.errors));
		errors.classList.toggle('is-error', rule.counts.errors > 0);
		for (const [cell, n] of [[denied, rule.counts.denied], [deniedShare, rule.denied_share], [shadowShare, rule.shadow_share], [errors, rule.counts.errors]]) cell.classList.toggle('zero', !(n > 0));
		row.denied.set(rule.denied_share);
		row.shadow.set(rule.shadow_share);
	}

	return {
		update(parameters) {
			const one = (name, list, otherwise) => (list.includes(parameters.get(name)) ? parameters.get(name) : otherwise);
			state = {
				window: one('window', windows.map(([w]) => w), '2m'), scope: one('scope', ['daemon', 'all'], 'daemon'),
				sort: one('sort', columns.map((c) => c.sort).filter(Boolean), 'decisions'), filter: parameters.get('filter') ?? '',
			};
			filter.value = state.filter;
			show();
		},
		async poll() {
			const asked = { ...state };
			const live = await get('v1/live', { window: asked.window, scope: asked.scope, sort: asked.sort, rules: mostRows, ...(asked.filter ? { filter: asked.filter } : {}) });
			if (JSON.stringify(asked) === JSON.stringify(state)) showLive(live);
			await context.pollHealth();
		},
		close() {
			clearTimeout(typing);
			chart.close();
		},
	};
}

function newFigure([name, title]) {
	const value = el('span.figure-value', '–');
	const note = el('span.figure-note');
	const node = el('div.figure', { 'data-figure': name }, el('span.figure-name', title), value, note);
	return {
		node,
		set(text, about, kind) {
			setText(value, text);
			setText(note, about);
			setAttribute(node, 'data-kind', kind || null);
		},
	};
}

// newTotals counts since the daemon has started, as /metrics does. What has no place in the chart has
// its rate here, over the ten seconds that the page has seen last.
function newTotals() {
	const names = ['allowed', 'denied', 'shadowed', 'errors', 'banned', 'unmatched'];
	const about = { banned: t('Of those denied, requests of banned keys'), unmatched: t('Requests that no rule matched') };
	const values = Object.fromEntries(names.map((name) => [name, el('b', { 'data-total': name }, '–')]));
	const rates = Object.fromEntries(Object.keys(about).map((name) => [name, el('span', { 'data-rate': name })]));
	const node = el('p.totals.muted', t('Since the start:'), ' ', names.map((name) => el('span', { title: about[name] }, values[name], ` ${word(name)}`, rates[name])));
	let seen = [];
	return {
		node,
		set(live) {
			for (const name of names) setText(values[name], integer(live.totals[name] ?? live[name]));
			const at = Date.parse(live.time) / 1000, of = `${live.scope} ${live.daemon} ${live.started}`;
			seen = seen.filter((s) => s.of === of && s.at < at && s.at >= at - 10).concat({ at, of, banned: live.banned, unmatched: live.unmatched });
			for (const name of Object.keys(rates)) {
				const grown = Math.max(live[name] - seen[0][name], 0) / Math.max(at - seen[0].at, 1);
				setText(rates[name], grown > 0 ? t(', ') + t('{rate}/s', { rate: rate(grown) }) : '');
			}
		},
	};
}

function newDaemons() {
	const body = el('tbody');
	const node = card(t('Daemons'), null, table('daemons', [t('Daemon'), t('Version'), t('Last heard of'), `>${t('Decisions/s')}`, `>${t('Denied/s')}`], body));
	node.hidden = true;
	return {
		node,
		set(live) {
			node.hidden = live.scope !== 'all' || !live.daemons;
			if (node.hidden) return;
			reconcile(body, live.daemons, (d) => d.name,
				() => el('tr', el('th', { scope: 'row', class: 'mono' }), el('td'), el('td', el('span'), ' ', el('span.tag.warn', t('missing'))), el('td.numeric'), el('td.numeric')),
				(row, d) => {
					setText(row.children[0], d.name);
					setText(row.children[1], d.version);
					setText(row.children[2].firstChild, time(d.updated));
					row.children[2].lastChild.hidden = !d.missing;
					setText(row.children[3], rate(d.rates.decisions));
					setText(row.children[4], rate(d.rates.denied));
				});
		},
	};
}

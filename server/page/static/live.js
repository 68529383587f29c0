// Live: what the daemon does now and did lately.

import { get } from './api.js';
import { latencyRange, rateChart, shareBar, sparkline } from './chart.js';
import { card, el, reconcile, segmented, setAttribute, setEmpty, setText, table } from './dom.js';
import { bytes, compact, integer, percent, plural, rate, seconds, time } from './format.js';

const windows = [['2m', '2 min', 'The last two minutes, by the second'], ['1h', '1 hour', 'The last hour, by ten seconds'], ['1d', '1 day', 'The last day, by five minutes']];
const storeNames = { memory: 'Memory', redis: 'Redis', postgresql: 'PostgreSQL', mysql: 'MySQL', sqlite: 'SQLite' };
const scopes = [['daemon', 'This daemon'], ['all', 'All daemons', 'All daemons on the same Redis']];
const mostRows = 200;

// The columns of the table of rules: a title, and the order by which the daemon sorts.
const columns = [
	{ title: 'Rule', sort: 'name' },
	{ title: 'Trend' },
	{ title: 'Decisions/s', sort: 'decisions', numeric: true },
	{ title: 'Denied', sort: 'denied', numeric: true, counted: true },
	{ title: 'Denied share', sort: 'denied_share', numeric: true, counted: true },
	{ title: 'Shadow share', sort: 'shadow_share', numeric: true, counted: true },
	{ title: 'Errors', sort: 'errors', numeric: true, counted: true },
];

// limitText is a limit without its name, to show. Its state is found by the whole text only.
export const limitText = (text) => (text ?? '').replace(/ name=("(?:\\.|[^"\\])*"|\S+)/, '');

export function open(root, context) {
	let state = {};
	let typing = 0;

	const windowChoice = segmented('Window', windows, (window) => change({ window }));
	const scopeChoice = segmented('Scope', scopes, (scope) => change({ scope }));
	const daemon = el('span.muted.daemon');
	const figures = ['Decisions', 'Denied', 'Errors', 'Latency', 'Memory'].map(newFigure);
	const chart = rateChart();
	const totals = newTotals();
	const listeners = el('tbody');
	const calls = el('th.numeric', 'Calls');
	const storeBody = el('div.facts');
	const daemons = newDaemons();
	const rows = el('tbody');
	const more = el('p.muted.more', { hidden: true });
	const none = el('div.empty', { hidden: true });
	const heads = columns.map(newHead);
	const filter = el('input', {
		type: 'search', placeholder: 'Filter rules', 'aria-label': 'Filter rules', name: 'filter', class: 'filter', maxlength: '200',
		oninput: () => { clearTimeout(typing); typing = setTimeout(() => change({ filter: filter.value }), 150); },
	});

	root.append(
		el('div.toolbar', windowChoice, scopeChoice, daemon),
		el('section.figures', { 'aria-label': 'Now' }, figures.map((f) => f.node)),
		el('section.card', { 'aria-label': 'Decisions a second' }, chart.node, totals.node),
		el('div.columns',
			card('Latency by listener', null, table('listeners', ['Listener', el('th.numeric.optional', 'Connections'), calls, '>p50', el('th.numeric.optional', 'p90'), '>p99',
				el('th.wide', el('span.scale', el('span', '1 µs'), el('span', '1 ms'), el('span', '1 s')))], listeners)),
			card('Store', null, storeBody)),
		daemons.node,
		card('Rules', el('div.end', filter), table('rule-rows', heads.map((h) => h.node), rows), none, more));

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
		setText(calls, `Calls in ${span}`);
		heads.filter((h) => h.column.counted).forEach((h) => { h.node.title = `In the last ${span}`; });
		if (document.activeElement !== filter) filter.value = state.filter;
		for (const { column, node } of heads) setAttribute(node, 'aria-sort', column.sort === state.sort ? (column.sort === 'name' ? 'ascending' : 'descending') : null);
	}

	function showLive(live) {
		scopeChoice.hidden = live.store.kind !== 'redis';
		setText(daemon, `${live.daemon} · ${live.version} · since ${time(live.started)}`);
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
		figures[0].set(rate(r.decisions), 'a second, over 10 s');
		figures[1].set(rate(r.denied), `a second, over 10 s, ${percent(r.decisions ? r.denied / r.decisions : 0)}`, r.denied > 0 ? 'denied' : '');
		figures[2].set(rate(r.errors), 'a second, over 10 s', r.errors > 0 ? 'error' : '');
		const busiest = live.listeners.filter((l) => l.name !== 'admin' && l.p99 !== null).sort((a, b) => b.calls - a.calls)[0];
		if (busiest) figures[3].set(seconds(busiest.p99), `p99 of ${busiest.name}, over ${windows.find(([w]) => w === state.window)[1]}`);
		else figures[3].set('–', 'no calls yet');
		figures[4].set(bytes(live.process.heap_bytes ?? 0), `heap, ${bytes(live.process.total_bytes ?? 0)} held`);
	}

	function showListeners(live) {
		reconcile(listeners, live.listeners, (l) => l.name,
			() => el('tr', el('th', { scope: 'row' }), el('td.numeric.optional'), el('td.numeric'), el('td.numeric'),
				el('td.numeric.optional'), el('td.numeric'), el('td.wide')),
			(row, l) => {
				const latency = (s) => (s === null ? '–' : seconds(s));
				[l.name, integer(l.connections), compact(l.calls), latency(l.p50), latency(l.p90), latency(l.p99)].forEach((text, i) => setText(row.children[i], text));
				row.lastChild.replaceChildren(latencyRange(l.p50, l.p90, l.p99));
			});
	}

	function showStore(store) {
		const down = store.shards.filter((s) => s.state !== 'up');
		const facts = [
			['Kind', storeNames[store.kind]],
			['State', store.degraded ? el('span.tag.warn', 'degraded') : el('span.tag.accent', 'up')],
		];
		if (store.shards.length > 0) facts.push([plural(store.shards.length, 'shard'), shardPicture(store.shards, down)]);
		if (store.kind !== 'memory') {
			const lost = store.state_losses.reduce((sum, l) => sum + l.count, 0);
			facts.push(['State losses since the start', lost === 0 ? '0' : el('span.tag.denied', store.state_losses.filter((l) => l.count).map((l) => `${l.count} ${l.reason.replace('_', ' ')}`).join(', '))]);
			facts.push(['Failed calls since the start', integer(store.errors)]);
			if (store.refusals) facts.push(['Refused calls since the start', el('span.tag.denied', integer(store.refusals))]);
		}
		const m = store.memory;
		if (m) {
			facts.push([store.kind === 'memory' ? 'Keys' : 'Fallback keys', `${integer(m.keys)} of ${compact(m.max_keys)}`]);
			facts.push(['Under limits in requests', integer(m.request_limit_keys)]);
			facts.push(['Logs and windows', `${bytes(m.bytes)}${m.max_bytes ? ` of ${bytes(m.max_bytes)}` : ''}`]);
			facts.push(['Overflow decisions since the start', m.overflow ? el('span.tag.denied', integer(m.overflow)) : '0']);
		}
		storeBody.replaceChildren(...facts.map(([name, value]) => el('div.fact', el('span.muted', name), el('span', value))));
	}

	function shardPicture(shards, down) {
		if (shards.length > 64) return down.length ? el('span.tag.denied', `${down.length} down`) : 'all up';
		return el('span.shards', { role: 'img', 'aria-label': down.length ? `${down.length} down` : 'all up' },
			shards.map((s) => el('span', { class: `shard shard-${s.state}`, title: `Shard ${s.shard}: ${s.state}${s.error ? `, ${s.error}` : ''}` })));
	}

	function showRules(live) {
		reconcile(rows, live.rules, (r) => r.name, newRow, updateRow);
		if (state.filter) setEmpty(none, live.rules.length === 0, 'No rule matches', 'The filter is in the name of none.');
		else setEmpty(none, live.rules.length === 0, 'No rules', 'Rules appear here, and limits in requests with their first decision.');
		const hidden = (live.rules_matching ?? live.rules.length) - live.rules.length;
		more.hidden = hidden <= 0;
		setText(more, `${plural(hidden, 'more rule')}; filter to see them.`);
	}

	function newRow(rule) {
		const denied = shareBar('denied'), shadow = shareBar('shadow');
		const row = el('tr', null,
			el('th', { scope: 'row' },
				el('a.rule-link', { href: `#/keys?${new URLSearchParams({ rule: rule.name === '' ? '-' : rule.name })}` }, rule.name === '' ? 'limits in requests' : rule.name),
				el('code.rule-limit'), el('span.tag.shadow', { hidden: true }, 'shadow')),
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

function newFigure(name) {
	const value = el('span.figure-value', '–');
	const note = el('span.figure-note');
	const node = el('div.figure', { 'data-figure': name.toLowerCase() }, el('span.figure-name', name), value, note);
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
	const about = { banned: 'Of those denied, requests of banned keys', unmatched: 'Requests that no rule matched' };
	const values = Object.fromEntries(names.map((name) => [name, el('b', { 'data-total': name }, '–')]));
	const rates = Object.fromEntries(Object.keys(about).map((name) => [name, el('span', { 'data-rate': name })]));
	const node = el('p.totals.muted', 'Since the start: ', names.map((name) => el('span', { title: about[name] }, values[name], ` ${name}`, rates[name])));
	let seen = [];
	return {
		node,
		set(live) {
			for (const name of names) setText(values[name], integer(live.totals[name] ?? live[name]));
			const at = Date.parse(live.time) / 1000, of = `${live.scope} ${live.daemon} ${live.started}`;
			seen = seen.filter((s) => s.of === of && s.at < at && s.at >= at - 10).concat({ at, of, banned: live.banned, unmatched: live.unmatched });
			for (const name of Object.keys(rates)) {
				const grown = Math.max(live[name] - seen[0][name], 0) / Math.max(at - seen[0].at, 1);
				setText(rates[name], grown > 0 ? `, ${rate(grown)}/s` : '');
			}
		},
	};
}

function newDaemons() {
	const body = el('tbody');
	const node = card('Daemons', null, table('daemons', ['Daemon', 'Version', 'Last heard of', '>Decisions/s', '>Denied/s'], body));
	node.hidden = true;
	return {
		node,
		set(live) {
			node.hidden = live.scope !== 'all' || !live.daemons;
			if (node.hidden) return;
			reconcile(body, live.daemons, (d) => d.name,
				() => el('tr', el('th', { scope: 'row', class: 'mono' }), el('td'), el('td', el('span'), ' ', el('span.tag.warn', 'missing')), el('td.numeric'), el('td.numeric')),
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

// Overrides: the keys that have another limit than their rule, none, or a ban.

import { endOverride, overrideReason, setOverride } from './actions.js';
import { address } from './address.js';
import { get } from './api.js';
import { breakable, card, el, keyNode, reconcile, setEmpty, setText, table } from './dom.js';
import { time } from './format.js';
import { t } from './language.js';

const mostRows = 200;
const slowPolls = 3; // what changes by itself seldom is asked for at every third poll

export function open(root, context) {
	let state = { filter: '' };
	let polls = 0;
	let typing = 0;
	let actions = false;

	const filter = el('input', {
		type: 'search', class: 'filter', placeholder: t('Filter overrides'), 'aria-label': t('Filter overrides'), name: 'filter', maxlength: '200',
		oninput: () => { clearTimeout(typing); typing = setTimeout(() => change({ filter: filter.value }), 150); },
	});
	const count = el('span.muted.small');
	const rows = el('tbody');
	const empty = el('div.empty', { hidden: true });
	let names = []; // of rules
	const setting = el('button.primary', { type: 'button', name: 'set', hidden: true, onclick: () => setOverride(context, {}, null, names) }, t('Set an override'));

	root.append(card(t('Overrides'), [count, el('div.end', filter, setting)],
		table('overrides', [t('Rule'), t('Key'), t('Limit'), t('Until'), t('Last used'), t('Reason'), ''], rows), empty));

	function change(part) {
		state = { ...state, ...part };
		context.remember(state);
		polls = 0;
		context.pollNow();
	}

	function newRow(o) {
		const row = el('tr', el('td', breakable(o.rule)), el('td', el('a', { href: address('keys', { key: o.key, keyrule: o.rule }) }, keyNode(o.key))),
			el('td', o.limit === 'ban' ? el('span.tag.denied', t('ban')) : el('code', o.limit)), el('td.nowrap'), el('td.nowrap'), el('td.reason'),
			el('td.end-cell', el('div.acts',
				el('button', { type: 'button', name: 'change', onclick: () => setOverride(context, { rule: o.rule, key: o.key, limit: o.limit }, row.override) }, t('Change')),
				el('button.danger', { type: 'button', name: 'end', onclick: () => endOverride(context, row.override) }, t('End')))));
		return row;
	}

	function updateRow(row, o) {
		row.override = o;
		const [, , , until, used, reason, end] = row.children;
		setText(until, o.until ? time(o.until) : t('for good'));
		setText(used, o.last_used ? time(o.last_used) : t('never'));
		setText(reason, overrideReason(o));
		end.hidden = !actions;
	}

	function show(answer) {
		actions = answer.actions;
		setting.hidden = !actions;
		reconcile(rows, answer.overrides, (o) => JSON.stringify([o.rule, o.key, o.limit]), newRow, updateRow);
		const all = answer.total;
		setText(count, [t('{n} override|{n} overrides', { n: all }), all > mostRows ? t('the first {m} shown', { m: mostRows }) : '', answer.durable ? '' : t('lost when the daemon ends')].filter(Boolean).join(t(', ')));
		if (state.filter) setEmpty(empty, all === 0, t('No override matches'), t('The filter is in the rule, key, limit or reason of none.'));
		else setEmpty(empty, all === 0, t('No overrides'), t('Bans of penalties and what operators set are listed here.'));
	}

	return {
		update(parameters) {
			state = { filter: parameters.get('filter') ?? '' };
			filter.value = state.filter;
			polls = 0;
		},
		async poll() {
			if (polls++ % slowPolls === 0) {
				const asked = state.filter;
				const [answer, known] = await Promise.all([get('v1/overrides', { n: mostRows, ...(asked ? { filter: asked } : {}) }), get('rules')]);
				if (asked === state.filter) show(answer);
				names = known.rules.filter((r) => !r.unlimited).map((r) => r.name);
				root.dataset.ready = 'true';
			}
			await context.pollHealth();
		},
		refresh: () => { polls = 0; },
		close: () => clearTimeout(typing),
	};
}

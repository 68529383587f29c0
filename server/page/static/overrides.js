// Overrides: the keys that have another limit than their rule, none, or a ban.

import { actionForm, overrideReason } from './actions.js';
import { address } from './address.js';
import { get, put, remove } from './api.js';
import { card, el, field, keyNode, reconcile, setEmpty, setText, table } from './dom.js';
import { plural, time } from './format.js';

const mostRows = 200;
const slowPolls = 3; // what changes by itself seldom is asked for at every third poll

export function open(root, context) {
	let state = { filter: '' };
	let polls = 0;
	let typing = 0;
	let actions = false;

	const filter = el('input', {
		type: 'search', class: 'filter', placeholder: 'Filter overrides', 'aria-label': 'Filter overrides', name: 'filter', maxlength: '200',
		oninput: () => { clearTimeout(typing); typing = setTimeout(() => change({ filter: filter.value }), 150); },
	});
	const count = el('span.muted.small');
	const rows = el('tbody');
	const empty = el('div.empty', { hidden: true });
	const note = el('p.done', { role: 'status', hidden: true });
	const inputs = Object.fromEntries(['rule', 'key', 'limit', 'for'].map((name) => [name, el('input.mono', { name, spellcheck: 'false', autocomplete: 'off' })]));
	const rules = el('datalist', { id: 'override-rules' });
	const limits = el('datalist', { id: 'override-limits' }, ['ban', 'unlimited'].map((value) => el('option', { value })));
	inputs.rule.setAttribute('list', rules.id);
	inputs.limit.setAttribute('list', limits.id);
	const setting = actionForm(context, 'Set an override', { above: el('div.override-form', rules, limits,
		field('Rule', inputs.rule), field('Key', inputs.key, 'One key, or with ban and unlimited a range: 203.0.113.0/24, tenant-7:*'),
		field('Limit', inputs.limit, 'As in a rule file, or ban, or unlimited'), field('For', inputs.for, '10m, 24h; empty: for good')) },
	[['Set', 'primary', set]], tried);

	root.append(card('Overrides', [count, el('div.end', filter)], setting, note,
		table('overrides', ['Rule', 'Key', 'Limit', 'Until', 'Last used', 'Reason', ''], rows), empty));

	function change(part) {
		state = { ...state, ...part };
		context.remember(state);
		tried();
	}

	function tried() {
		polls = 0;
		context.pollNow();
	}

	function say(text) {
		setText(note, text);
		note.hidden = false;
	}

	async function set(reason) {
		const value = (name) => inputs[name].value.trim();
		const changed = await put('v1/overrides', { rule: value('rule'), key: inputs.key.value, limit: value('limit'), for: value('for'), reason });
		say(`Set: ${value('limit')} for ${inputs.key.value} of ${value('rule')}${changed.note ? `; ${changed.note}` : ''}.`);
		for (const name of ['key', 'limit', 'for']) inputs[name].value = '';
		return changed;
	}

	function newRow(o) {
		const ending = actionForm(context, 'End', {}, [['End it', 'danger', async (reason) => {
			const ended = await remove('v1/overrides', { rule: o.rule, key: o.key, reason });
			say(`Ended: ${o.limit} of ${o.key}.`);
			return ended;
		}]], tried);
		return el('tr', el('td', o.rule), el('td', el('a', { href: address('keys', { key: o.key, keyrule: o.rule }) }, keyNode(o.key))),
			el('td', o.limit === 'ban' ? el('span.tag.denied', 'ban') : el('code', o.limit)), el('td.nowrap'), el('td.nowrap'), el('td.reason'), el('td.end-cell', ending));
	}

	function updateRow(row, o) {
		const [, , , until, used, reason, end] = row.children;
		setText(until, o.until ? time(o.until) : 'for good');
		setText(used, o.last_used ? time(o.last_used) : 'never');
		setText(reason, overrideReason(o));
		end.hidden = !actions;
	}

	function show(answer) {
		actions = answer.actions;
		setting.hidden = !actions;
		reconcile(rows, answer.overrides, (o) => JSON.stringify([o.rule, o.key, o.limit]), newRow, updateRow);
		const all = answer.total;
		setText(count, `${plural(all, 'override')}${all > mostRows ? `, the first ${mostRows} shown` : ''}${answer.durable ? '' : ', lost when the daemon ends'}`);
		if (state.filter) setEmpty(empty, all === 0, 'No override matches', 'The filter is in the rule, key, limit or reason of none.');
		else setEmpty(empty, all === 0, 'No overrides', 'Bans of penalties and what operators set are listed here.');
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
				reconcile(rules, known.rules.filter((r) => !r.unlimited), (r) => r.name, (r) => el('option', { value: r.name }), () => {});
				root.dataset.ready = 'true';
			}
			await context.pollHealth();
		},
		close: () => clearTimeout(typing),
	};
}

// Rules: the tree of the rule files, which rule applies to a descriptor, and how the last
// load ended.

import { get } from './api.js';
import { candidateList, tryCandidate } from './candidates.js';
import { card, el, field, reconcile, setEmpty, setText, table } from './dom.js';
import { ago, compact, time } from './format.js';
import { t } from './language.js';
import { limitText } from './live.js';

const slowPolls = 2;
const mostRows = 500;

// escapeEntry writes an entry as the daemon reads it, in the parameter key.
const escapeEntry = (text) => text.replace(/[\\|=]/g, '\\$&');

// parseEntries reads one entry a line: key=value.
function parseEntries(text) {
	return text.split('\n').map((line) => line.replace(/\r$/, '')).filter((line) => line !== '').map((line) => {
		const at = line.indexOf('=');
		if (at < 1) throw new Error(t('“{line}” is no entry: write one a line, such as user=42.', { line }));
		return `${escapeEntry(line.slice(0, at))}=${escapeEntry(line.slice(at + 1))}`;
	}).join('|');
}

export function open(root, context) {
	let state = { domain: '', entries: '', filter: '' };
	let polls = 0;
	let answer = null;
	let example = null; // {domain, entries} to explain while nothing is written
	let typing = 0;
	let sequence = 0;

	const filter = el('input', {
		type: 'search', class: 'filter', placeholder: t('Filter rules'), 'aria-label': t('Filter rules'), name: 'filter',
		oninput: () => change({ filter: filter.value }),
	});
	const rows = el('tbody');
	const empty = el('div.empty', { hidden: true });
	const count = el('span.muted.small');
	const reload = el('div.reload');
	const candidates = candidateList(context);
	let tried = { candidates: [], actions: false };
	const domain = el('select', { name: 'domain', onchange: () => change({ domain: domain.value }) });
	const entries = el('textarea.mono', {
		rows: '3', name: 'entries', spellcheck: 'false', placeholder: 'path=/login\nremote_address=203.0.113.9',
		oninput: () => change({ entries: entries.value }),
	});
	const explanation = el('pre.explanation', { tabindex: '0', 'aria-live': 'polite', 'aria-label': t('Explanation') });
	const problem = el('p.problem', { role: 'alert', hidden: true });

	root.append(
		el('div.rules-top',
			card(t('Which rule applies to …'), null,
				el('div.explain', el('div.explain-form', field(t('Domain'), domain), field(t('Entries, one a line'), entries), problem), explanation)),
			card(t('Last load'), null, reload)),
		candidates.node,
		card(t('Rules'), [count, el('div.end', filter)],
			table('tree', [t('Descriptor'), t('Limit'), t('Settings'), `>${t('Allowed')}`, `>${t('Denied')}`, t('Where'), ''], rows), empty));

	function change(part) {
		state = { ...state, ...part };
		context.remember(state);
		if (part.filter !== undefined) showTree();
		else explainSoon();
	}

	function explainSoon() {
		clearTimeout(typing);
		typing = setTimeout(explain, 120);
	}

	async function explain() {
		const mine = ++sequence;
		problem.hidden = true;
		const asked = JSON.stringify([state.domain, state.entries]);
		const written = state.domain && state.entries.trim() !== '';
		example = written ? null : exampleIn(answer?.rules ?? [], state.domain);
		let text;
		try {
			if (written) text = await explained(parseEntries(state.entries));
			else if (example) text = `${t('For example, {entries}:', { entries: example.replaceAll('\n', t(', ')) })}\n\n${await explained(parseEntries(example))}`;
			else text = t('Write the entries of a descriptor to see the rule that applies, and why others do not.');
		} catch (error) {
			if (mine !== sequence) return;
			setText(problem, error.message);
			problem.hidden = false;
		}
		if (mine !== sequence) return;
		explanation.classList.toggle('muted', !written);
		setText(explanation, text ?? '');
		explanation.dataset.ready = asked;
	}

	const explained = async (key) => (await context.attempt(() => get('v1/explain', { domain: state.domain, key })))?.text ?? '';

	function showTree() {
		if (!answer) return;
		const text = state.filter.toLowerCase();
		const matching = answer.rules.filter((r) => `${r.name} ${r.limit ?? ''} ${r.file ?? ''}`.toLowerCase().includes(text));
		const lines = linesOf(matching.slice(0, mostRows));
		reconcile(rows, lines, (l) => l.id, newLine, updateLine);
		setText(count, [t('{n} rule|{n} rules', { n: matching.length }), matching.length > mostRows ? t('the first {m} shown', { m: mostRows }) : ''].filter(Boolean).join(t(', ')));
		const none = matching.length === 0;
		if (!answer.loaded) setEmpty(empty, none, t('No rules'), t('This daemon runs without --rules: requests must bring their limits.'));
		else setEmpty(empty, none, t('No rule matches'), t('The filter is in the name, limit or file of none.'));
	}

	function newLine(line) {
		const row = el('tr', { class: line.rule ? null : 'branch' }, el('th', { scope: 'row' }, indented(line)), el('td'), el('td.settings'),
			el('td.numeric'), el('td.numeric'), el('td.where'), el('td.end-cell'));
		row.style.setProperty('--depth', line.depth);
		return row;
	}

	function indented(line) {
		return el('span.node', line.domain ? el('strong', line.domain)
			: [el('span', line.entry.key), line.entry.value ? el('span.muted', `=${line.entry.value}`) : null, el('span.muted', furtherOf(line.rule))]);
	}

	function updateLine(row, { rule }) {
		if (!rule) return;
		const [, limit, settings, allowed, deniedCell, where, end] = row.children;
		allowed.dataset.title = t('Allowed');
		deniedCell.dataset.title = t('Denied');
		limit.replaceChildren(rule.unlimited ? el('span.muted', t('unlimited')) : el('code', limitText(rule.limit)));
		settings.replaceChildren(...(rule.settings ?? []).map((s) => el('span', { class: `tag ${s.name === 'shadow' ? 'shadow' : ''}`, title: `${s.name}: ${s.text}` }, settingText(s))));
		setText(allowed, compact(rule.counts?.allowed ?? 0));
		setText(deniedCell, compact(rule.counts?.denied ?? 0));
		setText(where, rule.file ? `${rule.file.split('/').pop()}:${rule.line}` : '');
		if (rule.file) where.title = `${rule.file}:${rule.line}`;
		row.rule = rule;
		if (end.children.length === 0) end.append(el('button.ghost', { type: 'button', name: 'try', onclick: () => tryCandidate(context, row.rule, tried.candidates.find((c) => c.rule === row.rule.name)) }, t('Try a limit')));
		end.firstChild.hidden = !tried.actions || rule.unlimited;
	}

	function showReload(last) {
		if (!last || !answer.loaded) {
			reload.replaceChildren(el('p.muted', t('No rule files.')));
			return;
		}
		const failed = last.errors.length > 0;
		reload.replaceChildren(
			el('p', failed ? el('span.tag.denied', t('failed')) : el('span.tag.accent', t('loaded')), ` ${time(last.time)}`, t(', '), ago(last.time)),
			...(failed ? [el('p.muted', t('The rules of {time} are in force.', { time: time(last.loaded) }))] : []),
			...last.errors.map((e) => el('p.problem', e.file ? el('code', `${e.file}${e.line ? `:${e.line}` : ''}: `) : null, e.reason)),
			el('p.muted', t('Default while the store is down: on_store_failure {mode}.', { mode: last.on_store_failure })));
	}

	function showDomains() {
		const names = [...new Set(answer.rules.map((r) => r.domain))];
		if (state.domain && !names.includes(state.domain)) names.push(state.domain);
		reconcile(domain, names, (n) => n, (n) => el('option', { value: n }, n), () => {});
		if (!state.domain && names.length > 0) {
			state.domain = names[0];
			explainSoon();
		}
		domain.value = state.domain;
	}

	return {
		update(parameters) {
			state = { domain: parameters.get('domain') ?? '', entries: parameters.get('entries') ?? '', filter: parameters.get('filter') ?? '' };
			entries.value = state.entries;
			filter.value = state.filter;
			polls = 0;
			if (answer) {
				showDomains();
				showTree();
			}
			explain();
		},
		async poll() {
			if (polls++ % slowPolls === 0) {
				[answer, tried] = await Promise.all([get('rules'), get('v1/candidates', { keys: 5 })]);
				candidates.set(tried);
				showDomains();
				showTree();
				if (state.entries.trim() === '' && example !== exampleIn(answer.rules, state.domain)) explain();
				showReload(answer.reload);
				root.dataset.ready = 'true';
			}
			await context.pollHealth();
		},
		refresh: () => { polls = 0; },
		close() {
			clearTimeout(typing);
			sequence++;
		},
	};
}

// exampleIn returns the entries of a request that a domain's first rule applies to.
function exampleIn(rules, domain) {
	const rule = rules.find((r) => r.domain === domain);
	return rule ? rule.path.map(({ key, value }) => `${key}=${(value ?? 'x').replaceAll('*', 'x')}`).join('\n') : null;
}

// settingText is a setting in a few words; its whole text is shown on demand.
function settingText({ name, text }) {
	if (['shadow', 'quota', 'settle'].includes(name) || name === 'lease' && text !== 'false') return name;
	if (name === 'charge') return 'charge always';
	if (name === 'candidate') return `${name} ${text.split(',')[0]}`;
	const penalty = name === 'penalty' && /^(\d+) denials within (\S+) ban a key for ([^,]+)/.exec(text);
	return penalty ? `penalty ${penalty[1]}/${penalty[2]} → ${penalty[3]}` : `${name} ${text}`;
}

// furtherOf returns the end of a name by which a further limit of a rule is told from its first.
const furtherOf = (rule) => /\/\/[^/]+$/.exec(rule?.name ?? '')?.[0] ?? '';

// linesOf returns the rules as a tree in depth-first order: a line for each domain, for
// each rule, and for the entries that only lead to rules.
function linesOf(rules) {
	const lines = [];
	const seen = new Set();
	for (const rule of [...rules].sort((a, b) => (a.domain < b.domain ? -1 : a.domain > b.domain ? 1 : 0))) {
		let id = JSON.stringify(rule.domain);
		if (!seen.has(id)) {
			seen.add(id);
			lines.push({ id, depth: 0, domain: rule.domain });
		}
		rule.path.forEach((entry, i) => {
			id += JSON.stringify(entry);
			const last = i === rule.path.length - 1;
			if (last) lines.push({ id: `rule ${rule.name}`, depth: i + 1, entry, rule });
			else if (!seen.has(id)) lines.push({ id, depth: i + 1, entry });
			seen.add(id);
		});
	}
	return lines;
}

// Candidates: limits that are counted beside those in force, and never deny.

import { act, undoReason } from './actions.js';
import { address } from './address.js';
import { put, remove } from './api.js';
import { shareBar } from './chart.js';
import { breakable, card, el, field, keyNode, reconcile } from './dom.js';
import { percent, time } from './format.js';
import { t, tn } from './language.js';
import { limitText } from './live.js';

// tryAgain tries a candidate which was ended or replaced, until its former end.
const tryAgain = (context, c, why) => () => act(context, {
	title: t('Undo'), yes: t('Yes, try it'), kind: 'primary', reason: undoReason(why), will: () => willTry(c.rule, c.candidate, c.until ? t('until {time}', { time: time(c.until) }) : t('until the daemon ends')),
	work: (reason) => put('v1/candidates', null, { rule: c.rule, limit: c.candidate, ...(c.until ? { for: `${Math.max(1, Math.round((Date.parse(c.until) - Date.now()) / 1000))}s` } : {}), reason }),
	done: () => [t('Tried: {limit} for {rule}.', { limit: c.candidate, rule: c.rule })],
});

const willTry = (rule, limit, end) => tn('This will count {limit} beside the limit of {rule}, on this daemon alone, {end}. It denies nothing.', { limit: el('code', limit), rule: el('b', rule), end: el('b', end) });

// tryCandidate asks for a limit to try for a rule. The former is the one that is tried already, if any.
export function tryCandidate(context, rule, former) {
	const input = (name, value) => el('input.mono', { name, value, spellcheck: 'false', autocomplete: 'off' });
	const limit = input('limit', former?.candidate ?? limitText(rule.limit)), length = input('for', '1h');
	const end = () => (length.value.trim() ? t('for {time}', { time: length.value.trim() }) : t('until the daemon ends'));
	act(context, {
		title: t('Try a limit for {rule}?', { rule: rule.name }), yes: t('Yes, try it'), kind: 'primary',
		fields: el('div.override-form', field(t('Limit'), limit, t('As in a rule file')), field(t('For'), length, t('30m, 1h, 7d; empty: until the daemon ends'))),
		will: () => (limit.value.trim() ? [...willTry(rule.name, limit.value.trim(), end()), ...(former ? [' ', ...tn('It takes the place of {limit}, and counts anew.', { limit: el('code', former.candidate) })] : [])] : null),
		work: (reason) => put('v1/candidates', null, { rule: rule.name, limit: limit.value.trim(), ...(length.value.trim() ? { for: length.value.trim() } : {}), reason }),
		done: (answer, why) => [t('Tried: {limit} for {rule}.', { limit: limit.value.trim(), rule: rule.name }),
			former?.origin === 'api' ? tryAgain(context, former, why) : () => endCandidate(context, { rule: rule.name, candidate: limit.value.trim() }, undoReason(why))],
	});
}

function endCandidate(context, c, why) {
	act(context, {
		title: t('End this candidate?'), yes: t('Yes, end it'), kind: 'danger', reason: why,
		will: () => tn('This will end the trial of {limit} for {rule}, and drop what it has counted. The limit in force stays as it is.', { limit: el('code', c.candidate), rule: el('b', c.rule) }),
		work: (reason) => remove('v1/candidates', { rule: c.rule, reason }),
		done: (answer, reason) => [t('Ended: {limit} of {key}.', { limit: c.candidate, key: c.rule }), c.origin ? tryAgain(context, c, reason) : undefined],
	});
}

// candidateList returns the card that compares candidates with the limits in force.
export function candidateList(context) {
	const list = el('div.candidates');
	const node = card(t('Candidates'), el('span.muted.small', t('Counted beside the limit in force; they deny nothing')), list);
	node.hidden = true;

	function newCandidate(first) {
		const rows = [['in-force', t('in force')], ['candidate', t('candidate')]].map(([name, title]) => {
			const bar = shareBar('denied');
			return { bar, limit: el('code'), text: el('span', { 'data-figure': name }), title };
		});
		const about = el('p.muted.small');
		const keys = el('div.candidate-keys');
		const acts = el('div.acts',
			el('button', { type: 'button', name: 'change', onclick: () => tryCandidate(context, { name: item.of.rule }, item.of) }, t('Change')),
			el('button.danger', { type: 'button', name: 'end', onclick: () => endCandidate(context, item.of) }, t('End')));
		const keep = el('p.keep');
		const item = el('article.candidate', el('header', el('strong', breakable(first.rule)), about),
			rows.map((r) => el('div.compared', el('span.muted', r.title), r.limit, r.bar, r.text)), keys, keep, acts);
		Object.assign(item, { rows, about, keys, keep, acts });
		return item;
	}

	function updateCandidate(item, c, actions) {
		item.of = c;
		item.about.replaceChildren(t('{n} request compared since {time}|{n} requests compared since {time}', { n: c.requests, time: time(c.since) }), c.until ? t(', ') + t('until {time}', { time: time(c.until) }) : '', t(', ') + originOf(c));
		[[c.limit ?? '–', c.denied], [c.candidate, c.would_deny]].forEach(([limit, n], i) => {
			const share = c.requests ? n / c.requests : 0;
			item.rows[i].limit.textContent = limit;
			item.rows[i].bar.set(share);
			item.rows[i].text.textContent = `${t('{n} denied', { n })} · ${percent(share)}`;
		});
		item.keys.replaceChildren(keyList(c, t('Newly denied: {n}', { n: c.newly_denied }), c.newly_denied_keys), keyList(c, t('Newly allowed: {n}', { n: c.newly_allowed }), c.newly_allowed_keys));
		item.keep.replaceChildren(...keepText(c));
		item.acts.hidden = !actions || c.origin === 'file';
		item.acts.children[1].hidden = c.origin !== 'api';
	}

	return {
		node,
		set(answer) {
			node.hidden = answer.candidates.length === 0;
			reconcile(list, answer.candidates, (c) => JSON.stringify([c.rule, c.candidate, c.origin]), newCandidate, (item, c) => updateCandidate(item, c, answer.actions));
		},
	};
}

const keyList = (c, title, keys) => el('div', el('p.field-label', title), el('ol', keys.map((k) => el('li',
	el('a', { href: address('keys', { key: k.key, keyrule: c.rule }) }, keyNode(k.key)), el('span.muted', t('{n} request|{n} requests', { n: k.requests }))))));

// originOf says where a candidate comes from.
const originOf = (c) => ({ rule: t('by the rule'), file: t('by the candidate rules'), api: t('set on this daemon') })[c.origin];

// keepText says how a candidate becomes the limit.
function keepText(c) {
	const values = { limit: el('code', `limit: "${c.candidate}"`), file: el('code', `${c.file}:${c.line}`) };
	if (!c.file) return tn('To keep it, add the rule with {limit} to the rules in force.', values);
	return c.origin === 'rule' ? tn('To keep it, write {limit} at {file}, and remove the candidate there.', values) : tn('To keep it, write {limit} at {file}.', values);
}

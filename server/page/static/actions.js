// Actions on keys and overrides. Each is a question first: a dialog says what will happen, asks why, and has Yes and No.
// What can be undone has a button for it afterwards.

import { get, put, remove } from './api.js';
import { el, field, keyNode, setText } from './dom.js';
import { time } from './format.js';
import { t, tn } from './language.js';

// act asks about an action, and carries it out after a Yes. Its parts are
//   title, yes   what it is called, and the button that does it
//   kind         the class of that button
//   fields       nodes with inputs, above the question
//   will         returns what will happen, as nodes, with the inputs as they are now; null while they are incomplete
//   reason       the one to begin with
//   work         does it, with the reason, which is written to the audit log
//   done         returns what to say after it, and how to undo it: [text, action]
export function act(context, action) {
	const will = el('p.will', { 'aria-live': 'polite' });
	const reason = el('input', { name: 'reason', maxlength: '500', autocomplete: 'off', placeholder: t('ticket, caller, cause'), value: action.reason });
	const problem = el('p.problem', { role: 'alert', hidden: true });
	const yes = el('button', { type: 'submit', class: action.kind, name: 'yes' }, action.yes);
	const no = el('button', { type: 'button', name: 'no', onclick: () => dialog.close() }, t('No'));
	const dialog = el('dialog.ask', { 'aria-label': action.title, onclose: () => dialog.remove() },
		el('form', { method: 'dialog', onsubmit: submit, oninput: describe }, el('h2', action.title), action.fields ?? null, will,
			field(t('Reason'), reason, t('Kept in the audit log, with your name or address.')), problem, el('div.ask-row', yes, no)));
	const fail = (text) => { setText(problem, text); problem.hidden = text === ''; };

	function describe() {
		const text = action.will();
		will.replaceChildren(...(text ?? [t('Fill in the fields to see what will happen.')]));
		yes.disabled = text === null;
	}

	async function submit(event) {
		event.preventDefault();
		const why = reason.value.trim();
		if (why === '') {
			fail(t('Write a reason: it is kept in the audit log.'));
			reason.focus();
			return;
		}
		fail('');
		yes.disabled = true;
		try {
			const answer = await context.attempt(() => action.work(why));
			dialog.close();
			if (answer !== undefined) context.say(...action.done(answer, why));
		} catch (error) {
			fail(error.message);
			yes.disabled = false;
		}
		context.acted();
	}

	describe();
	document.body.append(dialog);
	dialog.showModal();
	(dialog.querySelector('input:not([readonly])') ?? reason).focus();
}

export const undoReason = (why) => `undo: ${why}`.slice(0, 500);
const bold = (text) => el('b', text);
const inRule = (o) => ({ key: el('b', keyNode(o.key)), rule: bold(o.rule) });

// endText is until when an override is: a time, or for good.
const endText = (o) => (o.until ? t('until {time}', { time: time(o.until) }) : t('for good'));

// overrideText is what an override does to its key.
function overrideText(o, limit, end) {
	if (limit === 'ban') return tn('deny every request of {key} under {rule}, {end}', { ...inRule(o), end: bold(end) });
	if (limit === 'unlimited') return tn('let every request of {key} under {rule} pass, {end}', { ...inRule(o), end: bold(end) });
	return tn('give {key} under {rule} the limit {limit}, {end}', { ...inRule(o), limit: el('code', limit), end: bold(end) });
}

// willSet is the question about setting an override, in place of another if there is one.
const willSet = (o, limit, end, former) => [...tn('This will {what}.', { what: el('span', overrideText(o, limit, end)) }), ' ',
	...(former ? tn('Until now: {limit}, {end}.', { limit: el('code', former.limit), end: endText(former) }) : [t('Until now the limit of the rule applies.')])];

const againText = (o) => t('{limit} for {key} of {rule}', { limit: o.limit, key: o.key, rule: o.rule });

// setAgain is the action that sets an override which was ended or changed.
function setAgain(context, former, now, why) {
	const { rule, key, limit, until } = former;
	return () => act(context, {
		title: t('Undo'), yes: t('Yes, set it again'), kind: 'primary', reason: undoReason(why), will: () => willSet(former, limit, endText(former), now),
		work: (reason) => put('v1/overrides', { rule, key, limit, ...(until ? { until } : {}), reason }),
		done: () => [t('Set: {what}.', { what: againText(former) })],
	});
}

// endOverride asks whether to end an override.
export function endOverride(context, o, why) {
	act(context, {
		title: o.limit === 'ban' ? t('End this ban?') : t('End this override?'), yes: o.limit === 'ban' ? t('Yes, end the ban') : t('Yes, end it'), kind: 'danger', reason: why,
		will: () => (o.limit === 'ban' ? tn('This will end the ban of {key} under {rule}: from now on the limit of the rule applies to it again.', inRule(o))
			: tn('This will end {limit} of {key} under {rule}: from now on the limit of the rule applies to it again.', { ...inRule(o), limit: el('code', o.limit) })),
		work: (reason) => remove('v1/overrides', { rule: o.rule, key: o.key, reason }),
		done: (answer, reason) => [t('Ended: {limit} of {key}.', { limit: o.limit, key: o.key }), setAgain(context, o, null, reason)],
	});
}

// findOverride returns the override that a key has by itself, if any.
const findOverride = async ({ rule, key }) => (await get('v1/overrides', { rule, key })).overrides[0];

// setOverride asks for an override and sets it, in place of the former one if the key has one. If the names of rules
// are given, rule and key can be chosen, too.
export function setOverride(context, known, former, rules) {
	const input = (name, more) => el('input.mono', { name, spellcheck: 'false', autocomplete: 'off', value: known[name], readonly: known[name] !== undefined && more?.fixed, list: more?.list });
	const inputs = { rule: input('rule', { fixed: !rules, list: 'override-rules' }), key: input('key', { fixed: !rules }), limit: input('limit', { list: 'override-limits' }), for: input('for') };
	const value = (name) => (name === 'key' ? inputs.key.value : inputs[name].value.trim());
	const wanted = () => ({ rule: value('rule'), key: value('key'), limit: value('limit') });
	const keepsEnd = () => former?.until && value('for') === '';
	const isForGood = () => ['', '-'].includes(value('for')) && !keepsEnd();
	const end = () => (keepsEnd() ? endText(former) : isForGood() ? t('for good') : t('for {time}', { time: value('for') }));
	let before = null;
	act(context, {
		title: former ? t('Change this override?') : t('Set an override?'), yes: t('Yes, set it'), kind: 'primary',
		fields: el('div.override-form',
			el('datalist', { id: 'override-rules' }, (rules ?? []).map((name) => el('option', { value: name }))),
			el('datalist', { id: 'override-limits' }, ['ban', 'unlimited'].map((name) => el('option', { value: name }))),
			field(t('Rule'), inputs.rule), field(t('Key'), inputs.key, rules ? t('One key, or with ban and unlimited a range: 203.0.113.0/24, tenant-7:*') : null),
			field(t('Limit'), inputs.limit, t('As in a rule file, or ban, or unlimited')), field(t('For'), inputs.for, former?.until ? t('10m, 24h; empty: until then, as now; -: for good') : t('10m, 24h; empty: for good'))),
		will: () => (Object.values(wanted()).every(Boolean) ? willSet(wanted(), value('limit'), end(), former) : null),
		async work(reason) {
			before = former ?? (await findOverride(wanted()));
			return put('v1/overrides', { ...wanted(), ...(keepsEnd() ? { until: former.until } : { for: isForGood() ? '' : value('for') }), reason });
		},
		done: (answer, why) => [`${t('Set: {what}.', { what: againText(wanted()) })}${answer.note ? ` ${answer.note}.` : ''}`,
			before ? setAgain(context, before, wanted(), why) : () => endOverride(context, wanted(), undoReason(why))],
	});
}

// overrideTag names what an override does, until when.
export function overrideTag(o) {
	const what = { ban: t('banned'), unlimited: t('unlimited') }[o.limit] ?? t('override');
	return el('span', { class: `tag ${o.limit === 'ban' ? 'denied' : 'accent'}` }, `${what} ${endText(o)}`);
}

// overrideReason is why an override is there.
export const overrideReason = (o) => `${o.reason ?? ''}${o.strikes > 1 ? ` ${t('(ban {d} in a row)', { d: String(o.strikes) })}` : ''}`;

// overrideFacts are what is to be known of an override beside its key.
export const overrideFacts = (o) => [
	[t('Override'), el('span', tn('{limit} of {key}', { limit: el('code', o.limit), key: keyNode(o.key) }))],
	[t('Because'), el('span.reason', overrideReason(o))],
];

// Actions on keys and overrides.

import { el, field, keyNode, setText } from './dom.js';
import { time } from './format.js';

// actionForm returns a folded form, with fields above the reason and beside the buttons. A button is [label, class, work]:
// work is called with the reason, which is required, since it is written to the audit log. After an attempt, tried is called.
export function actionForm(context, title, { above, beside }, buttons, tried) {
	const reason = el('input', { name: 'reason', maxlength: '500', autocomplete: 'off', placeholder: 'ticket, caller, cause' });
	const problem = el('p.problem', { role: 'alert', hidden: true });
	const fail = (text) => { setText(problem, text); problem.hidden = text === ''; };
	const act = (work) => async () => {
		if (reason.value.trim() === '') {
			fail('Write a reason: it is kept in the audit log.');
			reason.focus();
			return;
		}
		fail('');
		try {
			if (await context.attempt(() => work(reason.value.trim())) !== undefined) reason.value = '';
		} catch (error) {
			fail(error.message);
		}
		tried();
	};
	return el('details.acts', el('summary', title), el('div.acts-form', above, field('Reason', reason), problem, el('div.acts-row', beside,
		buttons.map(([label, kind, work]) => el('button', { type: 'button', class: kind, onclick: act(work) }, label)))));
}

// overrideTag names what an override does, until when.
export function overrideTag(o) {
	const what = { ban: 'banned', unlimited: 'unlimited' }[o.limit] ?? 'override';
	return el('span', { class: `tag ${o.limit === 'ban' ? 'denied' : 'accent'}` }, o.until ? `${what} until ${time(o.until)}` : `${what} for good`);
}

// overrideReason is why an override is there.
export const overrideReason = (o) => `${o.reason ?? ''}${o.strikes > 1 ? ` (ban ${o.strikes} in a row)` : ''}`;

// overrideFacts are what is to be known of an override beside its key.
export const overrideFacts = (o) => [
	['Override', el('span', `${o.limit} of `, keyNode(o.key))],
	['Because', overrideReason(o)],
];

// The frame of the page: which view is shown, with which parameters, how often it asks
// the daemon, and what is said when the daemon does not answer.

import { address } from './address.js';
import { APIError, get, hasToken, readiness, removeToken, setToken } from './api.js';
import { el, field, reconcile, setText } from './dom.js';
import { time } from './format.js';
import { language, switchLanguage, t, tn, word } from './language.js';
import * as live from './live.js';
import * as keys from './keys.js';
import * as overrides from './overrides.js';
import * as rules from './rules.js';
import * as simulator from './simulator.js';

const views = { live, keys, overrides, rules, simulator };
const titles = { live: t('Live'), keys: t('Keys'), overrides: t('Overrides'), rules: t('Rules'), simulator: t('Simulator') };
const pollInterval = 1000;
const slowestPoll = 8000;

const main = document.getElementById('main');
const status = document.getElementById('status');
const lock = document.getElementById('lock');

let view = null; // {name, update, poll, close}
let timer = 0;
let failures = 0;
let failure = ''; // why the last poll failed
let banners = [];

function parseAddress() {
	const [path, query] = location.hash.replace(/^#\/?/, '').split('?', 2);
	return { name: Object.hasOwn(views, path) ? path : 'live', parameters: new URLSearchParams(query ?? '') };
}

// context is what a view may ask of the frame.
const context = {
	// remember puts the view's state into the address, without a new entry in the history.
	remember(parameters) {
		history.replaceState(null, '', address(view.name, parameters));
	},
	setStatus(state, text) {
		status.dataset.state = state;
		setText(status, text);
	},
	// attempt runs a call of the view, and asks for the token if that is missing.
	async attempt(work) {
		try {
			return await work();
		} catch (error) {
			if (error instanceof APIError && error.status === 401) {
				showLocked();
				return undefined;
			}
			throw error;
		}
	},
	pollNow: () => schedule(0),
	// say tells what an action has done, until the next one, and offers to undo it.
	say(text, undo) {
		const note = el('div.note', el('span.done', text),
			undo ? el('button', { type: 'button', name: 'undo', onclick: undo }, t('Undo')) : null,
			el('button.ghost', { type: 'button', 'aria-label': t('Close'), onclick: () => note.remove() }, '×'));
		document.getElementById('notes').replaceChildren(note);
	},
	// acted shows what an action has changed.
	acted() {
		view?.refresh?.();
		schedule(0);
	},
	// pollHealth shows whether the daemon is ready, and why not, and whether its rules are those of its files.
	async pollHealth() {
		const health = await readiness();
		const failed = health.old_rules ? (await get('v1/live', { rules: 0 })).failed_reload : null;
		const state = !health.ready ? 'down' : health.degraded ? 'degraded' : 'up';
		context.setStatus(state === 'up' && failed ? 'degraded' : state, { down: t('not ready'), degraded: t('degraded'), up: failed ? t('up, old rules') : t('up') }[state]);
		const own = state === 'up' ? [] : [{
			level: state === 'down' ? 'denied' : 'warn',
			title: state === 'down' ? t('Not ready.') : t('Degraded: decisions are made without the store.'),
			text: (health.reasons ?? []).join(' · '),
		}];
		banners = [...own, ...(failed ? [reloadBanner(failed)] : [])];
	},
};

// reloadBanner tells that the last load of the rules failed, and why.
function reloadBanner(failed) {
	const [first] = failed.errors;
	const where = first.file ? `${first.file}${first.line ? `:${first.line}` : ''}: ` : '';
	return {
		level: 'warn', title: t('The last load of the rules failed; those of {time} are in force, and a restart would fail.', { time: time(failed.loaded) }),
		text: where + first.reason,
	};
}

function route() {
	const { name, parameters } = parseAddress();
	for (const link of document.querySelectorAll('nav a')) {
		if (link.dataset.view === name) link.setAttribute('aria-current', 'page');
		else link.removeAttribute('aria-current');
	}
	document.title = `${titles[name]} · penstock`;
	if (view?.name !== name) open(name, parameters);
	else view.update(parameters);
	schedule(0);
}

function open(name, parameters) {
	view?.close?.();
	banners = [];
	const root = el('div', { class: `view view-${name}` });
	view = { name, root, ...views[name].open(root, context) };
	main.replaceChildren(root);
	view.update(parameters);
}

function schedule(delay) {
	clearTimeout(timer);
	timer = setTimeout(poll, delay);
}

async function poll() {
	clearTimeout(timer);
	if (document.hidden || !view || main.dataset.locked) return;
	const current = view;
	try {
		await current.poll();
		failures = 0;
	} catch (error) {
		failed(error);
	}
	lock.hidden = !hasToken();
	if (current !== view) return; // the next view polls already
	showBanners();
	schedule(Math.min(pollInterval * 2 ** failures, slowestPoll));
}

function failed(error) {
	if (error instanceof APIError && error.status === 401) return showLocked();
	failures = Math.min(failures + 1, 5);
	failure = error.status === 0 ? t('What is shown may be old; the page keeps asking.') : error.message;
	context.setStatus('down', error.status === 0 ? t('no answer') : t('error'));
	if (!(error instanceof APIError)) console.error(error);
}

function showBanners() {
	const all = failures === 0 ? banners
		: [{ level: 'denied', title: t('The daemon does not answer as it should.'), text: failure }];
	reconcile(document.getElementById('banners'), all, (b) => `${b.level} ${b.title} ${b.text ?? ''}`,
		(b) => el('div', { class: `banner ${b.level}` }, el('strong', b.title), b.text ? el('span', b.text) : null),
		() => {});
}

document.addEventListener('visibilitychange', () => { if (!document.hidden) schedule(0); });

function showLocked() {
	if (main.dataset.locked) return;
	const wrong = hasToken();
	removeToken();
	view?.close?.();
	view = null;
	main.dataset.locked = 'true';
	lock.hidden = true;
	banners = [];
	failures = 0;
	showBanners();
	context.setStatus('wait', t('locked'));
	const token = el('input', { type: 'password', autocomplete: 'off', spellcheck: 'false', required: true, name: 'token' });
	main.replaceChildren(el('form.card.unlock', { onsubmit: unlock },
		el('h1', t('This daemon asks for a token')),
		el('p.muted', tn('It is the one of {flag}. This tab keeps it until it is closed, and sends it to this daemon only.', { flag: el('code', '--token-file') })),
		field(t('Token'), token),
		wrong ? el('p.problem', { role: 'alert' }, t('That token was not accepted.')) : null,
		el('button.primary', { type: 'submit' }, t('Unlock'))));
	token.focus();

	function unlock(event) {
		event.preventDefault();
		setToken(token.value.trim());
		delete main.dataset.locked;
		route();
	}
}

lock.addEventListener('click', () => {
	removeToken();
	location.reload();
});
const themes = ['auto', 'light', 'dark'];
const themeButton = document.getElementById('theme');

function showTheme() {
	setText(themeButton.lastChild, word(document.documentElement.dataset.theme ?? 'auto'));
}

themeButton.addEventListener('click', () => {
	const now = document.documentElement.dataset.theme ?? 'auto';
	const next = themes[(themes.indexOf(now) + 1) % themes.length];
	if (next === 'auto') delete document.documentElement.dataset.theme;
	else document.documentElement.dataset.theme = next;
	try {
		if (next === 'auto') localStorage.removeItem('penstock-theme');
		else localStorage.setItem('penstock-theme', next);
	} catch { /* storage is disabled: the choice lasts as long as the tab */ }
	showTheme();
	dispatchEvent(new Event('themechange'));
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => dispatchEvent(new Event('themechange')));

// The texts of index.html, in the page's language.
document.documentElement.lang = { en: 'en', zh: 'zh-CN' }[language];
for (const node of document.querySelectorAll('[data-text]')) node.textContent = t(node.dataset.text);
for (const node of document.querySelectorAll('[data-title]')) node.title = t(node.dataset.title);
for (const node of document.querySelectorAll('[data-label]')) node.setAttribute('aria-label', t(node.dataset.label));
const languageButton = document.getElementById('language');
languageButton.textContent = { en: '中文', zh: 'EN' }[language];
languageButton.addEventListener('click', switchLanguage);

document.querySelector('.skip').addEventListener('click', (event) => {
	event.preventDefault();
	main.focus();
});
addEventListener('hashchange', () => { if (!main.dataset.locked) route(); });
showTheme();
route();

// The language of the page: English, in which its scripts are written, or Chinese, by the table of strings.js. What the
// daemon answers, such as the reasons of errors, stays as it is.

import { chinese, words } from './strings.js';

const storageName = 'penstock-language';

// language is the one chosen by the switch, or else the first of the browser's that the page has.
export const language = (() => {
	let kept = null;
	try {
		kept = localStorage.getItem(storageName);
	} catch { /* storage is disabled: the browser's language applies */ }
	return [kept, ...navigator.languages].map((name) => (name ?? '').slice(0, 2).toLowerCase()).find((name) => ['en', 'zh'].includes(name)) ?? 'en';
})();

// switchLanguage chooses the other language, and loads the page again in it.
export function switchLanguage() {
	try {
		localStorage.setItem(storageName, language === 'zh' ? 'en' : 'zh');
	} catch { /* storage is disabled: there is no other choice than the browser's */ }
	location.reload();
}

// formOf returns a text in the page's language. One of two forms with | between them is chosen by the number n.
function formOf(text, n) {
	const forms = (language === 'zh' && Object.hasOwn(chinese, text) ? chinese[text] : text).split('|');
	return forms.length > 1 && n !== 1 ? forms[1] : forms[0];
}

const hole = /\{(\w+)\}/;
const textOf = (value) => (typeof value === 'number' ? value.toLocaleString('en') : value);

// t returns a text with values in its holes: t('{n} rule|{n} rules', { n: 3 }).
export const t = (text, values = {}) => formOf(text, values.n).split(hole).map((part, i) => (i % 2 ? textOf(values[part]) : part)).join('');

// tn is t for values that are nodes: it returns a list of them, and of texts.
export const tn = (text, values) => formOf(text, values.n).split(hole).map((part, i) => (i % 2 ? textOf(values[part]) : part)).filter((part) => part !== '');

// word returns one of the words that the daemon answers with, such as an outcome.
export const word = (text) => (language === 'zh' && Object.hasOwn(words, text) ? words[text] : text);

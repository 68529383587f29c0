// Numbers and times as text. All figures have the width of a digit in the page's style
// sheet, so these functions need not align.

import { language, t } from './language.js';

const grouped = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

export const integer = (n) => grouped.format(n);

// compact formats 1234567 as 1.23M.
export function compact(n) {
	for (const [unit, letter] of [[1e9, 'G'], [1e6, 'M'], [1e4, 'k']]) {
		if (Math.abs(n) >= unit) {
			const scaled = n / (letter === 'k' ? 1e3 : unit);
			return Number(scaled.toFixed(scaled < 10 ? 2 : scaled < 100 ? 1 : 0)) + letter;
		}
	}
	return grouped.format(n);
}

export const rate = (n) => (n === 0 ? '0' : n < 0.1 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : compact(Math.round(n)));

// percent formats a share; a small one is never shown as 0%.
export function percent(share) {
	if (!(share > 0)) return '0%';
	if (share < 0.001) return '<0.1%';
	if (share < 0.1) return (share * 100).toFixed(1) + '%';
	return share > 0.995 && share < 1 ? '>99%' : Math.round(share * 100) + '%';
}

// seconds formats a duration; null is one without end.
export function seconds(s) {
	if (s === null || s === undefined) return t('never');
	if (s === 0) return t('{d} s', { d: '0' });
	if (s < 1e-3) return t('{d} µs', { d: digits(s * 1e6) });
	if (s < 1) return t('{d} ms', { d: digits(s * 1e3) });
	if (s < 120) return t('{d} s', { d: digits(s) });
	const units = [[86400, (d) => t('{d} d', { d })], [3600, (d) => t('{d} h', { d })], [60, (d) => t('{d} min', { d })], [1, (d) => t('{d} s', { d })]];
	const first = units.findIndex(([size]) => s >= size * 2 || size === 1);
	const [size, textOf] = units[first];
	let text = textOf(String(Math.floor(s / size)));
	const rest = units[first + 1];
	if (rest && Math.floor((s % size) / rest[0])) text += ` ${rest[1](String(Math.floor((s % size) / rest[0])))}`;
	return text;
}

const digits = (x) => String(Number(x.toPrecision(3)));

export function bytes(n) {
	const units = ['B', 'KB', 'MB', 'GB', 'TB'];
	let i = 0;
	while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
	return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const day = new Intl.DateTimeFormat(language === 'zh' ? 'zh-CN' : 'en-GB', { day: 'numeric', month: 'short' });

// time formats an instant of today as its time, and others with their date.
export function time(when) {
	const d = new Date(when);
	return d.toDateString() === new Date().toDateString() ? clock.format(d) : `${day.format(d)} ${clock.format(d)}`;
}

export const ago = (when) => {
	const s = Math.max(0, (Date.now() - new Date(when)) / 1000);
	return s < 2 ? t('just now') : t('{time} ago', { time: seconds(Math.floor(s)) });
};

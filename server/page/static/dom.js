// Elements are built here and nowhere else. Text becomes text nodes: no string is ever
// parsed as HTML, which the page's content security policy would not allow either.

import { t } from './language.js';

// The namespace of SVG, from the mark in index.html.
const svgNamespace = document.getElementById('mark').namespaceURI;

function fill(node, classes, rest) {
	if (classes.length > 0) node.setAttribute('class', classes.join(' '));
	if (Object.getPrototypeOf(rest[0] ?? 0) === Object.prototype) setAll(node, rest.shift());
	node.append(...rest.flat(2).filter((c) => c !== null && c !== undefined && c !== false));
	return node;
}

function setAll(node, attributes) {
	for (const [name, value] of Object.entries(attributes)) {
		if (value === undefined || value === null || value === false) continue;
		if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
		else if (name === 'value') node.value = value;
		else node.setAttribute(name, value === true ? '' : value);
	}
}

// el returns an HTML element: el('a.tag', {href: '#/live', onclick: f}, 'Live'). Its first
// argument names the tag and classes; attributes and children are optional.
export function el(name, ...rest) {
	const [tag, ...classes] = name.split('.');
	return fill(document.createElement(tag), classes, rest);
}

export function svg(name, ...rest) {
	const [tag, ...classes] = name.split('.');
	return fill(document.createElementNS(svgNamespace, tag), classes, rest);
}

// setText changes an element's text, if it is another one: an equal text keeps a
// selection, and screen readers silent.
export function setText(node, text) {
	if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
	if (value === null || value === undefined || value === false) node.removeAttribute(name);
	else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// segmented returns a group of radio buttons that looks like one control. Options are
// [value, label, title] each. Its set method selects one without an event.
export function segmented(label, options, onchange) {
	const name = `segment-${segmented.count = (segmented.count ?? 0) + 1}`;
	const inputs = options.map(([value]) =>
		el('input', { type: 'radio', name, value, onchange: () => onchange(value) }));
	const node = el('fieldset.segmented', el('legend.hidden', label),
		options.map(([, text, title], i) => el('label', { title }, inputs[i], el('span', text))));
	node.set = (value) => { for (const i of inputs) i.checked = i.value === value; };
	return node;
}

export const field = (label, input, hint) => el('label.field',
	el('span.field-label', label), input, hint ? el('span.hint', hint) : null);

// reconcile makes the children of a node those of the items, in order, and reuses the
// elements of items that it had: make(item) builds one, update(element, item) fills it. An id that is repeated,
// as that of keys which are alike as far as they are known, names one element for each of its turns.
export function reconcile(node, items, keyOf, make, update) {
	const old = new Map([...node.children].map((c) => [c.reconcileKey, c]));
	const turns = new Map();
	const wanted = items.map((item) => {
		const id = keyOf(item), turn = turns.get(id) ?? 0, key = `${turn} ${id}`;
		turns.set(id, turn + 1);
		let child = old.get(key);
		if (child) old.delete(key);
		else {
			child = make(item);
			child.reconcileKey = key;
		}
		update(child, item);
		return child;
	});
	for (const child of old.values()) child.remove();
	wanted.forEach((child, i) => {
		if (node.children[i] !== child) node.insertBefore(child, node.children[i] ?? null);
	});
}

// hiddenText matches what cannot be seen in a key, or changes the direction of the text: also spaces at its ends, between
// = and |, next to each other, and those that are no usual ones.
const hiddenText = /([\p{Cc}\p{Cf}\p{Zl}\p{Zp}\uFFFD\u00A0\u1680\u2000-\u200A\u202F\u205F\u3000]+|^ +| +$| {2,}|(?<==) +(?=\|))/u;

// breakable returns a text whose lines break between the entries of a key, and between the parts of a name or path.
export const breakable = (text) => text.split(/(?<=[|/])(?!\/)/).flatMap((part, i) => (i === 0 ? [part] : [el('wbr'), part]));

// keyNode shows a key, which can be any text. Hidden characters are shown by their numbers, everything else verbatim.
export function keyNode(key) {
	const node = el('bdi.key', { title: key.length > 40 ? key : undefined });
	key.split(hiddenText).forEach((part, i) => {
		if (i % 2 === 0) node.append(...breakable(part));
		else for (const c of part) node.append(el('span.escaped', `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`));
	});
	if (key === '') node.append(el('span.escaped', t('empty')));
	return node;
}

// card returns a titled part of a view; the nodes of head stand beside the title.
export const card = (title, head, ...children) => el('section.card', { 'aria-label': title },
	el('div.card-head', el('h2', title), head), ...children);

// table returns a table with a line of titles; one that begins with > is above numbers.
export const table = (name, titles, body) => el(`table.table.${name}`, el('thead', el('tr', titles.map((title) => (typeof title !== 'string' ? title
	: title[0] === '>' ? el('th.numeric', title.slice(1)) : el('th', title))))), body);

// setEmpty says why a list has no items, or hides that.
export function setEmpty(node, isEmpty, title, text) {
	node.hidden = !isEmpty;
	if (isEmpty && node.firstChild?.textContent !== title) node.replaceChildren(el('strong', title), text);
}

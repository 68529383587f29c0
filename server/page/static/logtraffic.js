// Own traffic of the simulator: an access log or a recording that is dropped on the page. The daemon, and nothing else,
// gets it, replays it under the limits, and forgets it.

import { get, post } from './api.js';
import { el, field, keyNode, reconcile, setText, svg } from './dom.js';
import { bytes, integer, percent, seconds, time } from './format.js';
import { t, tn, word } from './language.js';

const mostBytes = 32 << 20; // that the daemon accepts
const laneHeight = 64;

// byFields are what requests of a log can be counted by, without a rule.
const byFields = [['remote_address', t('client address')], ['user', t('user')], ['path', t('path')], ['remote_address,path', t('client address and path')], ['host', t('host')]];

// logTraffic returns the controls of a log, and its pictures. It calls changed when a limit is to be tried on a log.
export function logTraffic(root, context, changed) {
	let file = null;
	let sequence = 0;
	let answer = null;
	const input = el('input.hidden', { type: 'file', name: 'log', onchange: () => choose(input.files[0]) });
	const name = el('span', t('Drop an access log or a recording here, plain or gzip, at most {size}', { size: bytes(mostBytes) }));
	const zone = el('label.drop', input, el('span.chip', t('Choose a file')), name);
	const by = el('select', { name: 'by', onchange: changed });
	const others = el('input.mono', { name: 'others', spellcheck: 'false', autocomplete: 'off', placeholder: '20/1s burst=40; 600/1m sliding-window', oninput: () => { clearTimeout(typing); typing = setTimeout(changed, 400); } });
	let typing = 0;
	const node = el('div.log-traffic', zone, field(t('Counted by'), by), field(t('Other limits, with ; between them'), others, t('Without any, the limit is tried with every algorithm.')));
	const result = el('section.card.log-lanes', { 'aria-label': t('The log under each limit'), hidden: true });
	showBy([]);

	function showBy(rules) {
		const options = [...byFields, ...rules.filter((r) => !r.unlimited).map((r) => [`rule ${r.name}`, t('rule {name}', { name: r.name })])];
		reconcile(by, options, ([value]) => value, ([value, text]) => el('option', { value }, text), () => {});
	}

	function choose(chosen) {
		if (!chosen) return;
		file = chosen;
		setText(name, file.name + t(', ') + bytes(file.size));
		changed();
	}

	// The whole view takes a file that is dropped, so that it needs no aim; elsewhere a browser would open it.
	const isFile = (event) => event.dataTransfer?.types.includes('Files');
	const over = (event) => { if (isFile(event)) { event.preventDefault(); root.classList.add('dropping'); } };
	const left = () => root.classList.remove('dropping');
	const drop = (event) => { if (isFile(event)) { event.preventDefault(); left(); choose(event.dataTransfer.files[0]); } };
	for (const [kind, handle] of [['dragover', over], ['dragleave', left], ['drop', drop]]) root.addEventListener(kind, handle);

	async function run(limit) {
		const mine = ++sequence;
		delete result.dataset.ready;
		if (!file) {
			result.replaceChildren(el('div.empty', el('strong', t('No log yet')), t('Drop a file anywhere here.')));
			return;
		}
		if (file.size > mostBytes) throw new Error(t('{name} has {size}: want at most {most}; send a part of it, or compress it with gzip.', { name: file.name, size: bytes(file.size), most: bytes(mostBytes) }));
		const query = new URLSearchParams([limit, ...others.value.split(';')].map((text) => text.trim()).filter(Boolean).map((text) => ['limit', text]));
		const [kind, rule] = by.value.split(/ (.*)/s);
		query.set(kind === 'rule' ? 'rule' : 'by', kind === 'rule' ? rule : kind);
		result.classList.add('stale');
		const found = await context.attempt(() => post('v1/simulate/log', query, file));
		if (mine !== sequence || found === undefined) return;
		answer = found;
		result.classList.remove('stale');
		draw();
		result.dataset.ready = query.toString();
	}

	function draw() {
		if (!answer) return;
		const span = (Date.parse(answer.to) - Date.parse(answer.from)) / 1000;
		const highest = Math.max(1, ...answer.lanes.flatMap((lane) => lane.timeline.map((c) => c.requests)));
		result.replaceChildren(
			el('div.about.muted', el('span', tn('{n} request of {file}, {span} from {from}|{n} requests of {file}, {span} from {from}', { n: answer.requests, file: el('b', file.name), span: seconds(Math.max(span, 1)), from: time(answer.from) })),
				el('span.legend', el('span.key-passed', word('passed')), el('span.key-denied', word('denied')))),
			...answer.lanes.map((lane) => laneRow(lane, highest)),
			el('ul.assumed.muted', answer.assumed.map((text) => el('li', text))));
	}

	function laneRow(lane, highest) {
		if (lane.error) return el('div.lane', laneName(lane), el('p.muted', lane.error));
		const share = lane.denied.count / lane.requests;
		return el('div.lane', { 'data-limit': lane.limit }, laneName(lane), picture(lane, highest),
			el('dl.lane-figures',
				figure('denied', t('denied'), `${integer(lane.denied.count)} · ${percent(share)}`, share > 0),
				lane.denied.at_once > lane.denied.count ? figure('at-once', t('if all of a second came at once'), integer(lane.denied.at_once), true) : null,
				figure('keys', t('keys denied'), t('{a} of {b}', { a: lane.denied_keys, b: lane.keys }), false)),
			lane.most_denied.length > 0 ? el('ol.log-keys', lane.most_denied.map((k) => el('li', keyNode(k.key), el('span.muted', t('{a} of {b} denied', { a: k.denied, b: k.requests }))))) : null);
	}

	const laneName = (lane) => el('div.lane-name', el('strong', lane.algorithm), lane.written && answer.lanes.some((l) => !l.written) ? el('span.tag', t('as written')) : null, el('code', lane.limit));

	const figure = (name, title, text, isDenied) => el('div', el('dt', title), el('dd', { class: isDenied ? 'exceeds' : null, 'data-figure': name }, text));

	// picture draws what passed and what was denied over time, on top of each other.
	function picture(lane, highest) {
		const width = 640, step = width / lane.timeline.length;
		const bar = (kind, i, from, n) => (n > 0 ? svg(`rect.mark-${kind}`, { x: (i * step).toFixed(1), width: Math.max(step - 1, 0.5).toFixed(1), y: (laneHeight - (from + n) / highest * laneHeight).toFixed(1), height: Math.max(n / highest * laneHeight, 1).toFixed(1) }) : null);
		return el('div.lane-picture', svg('svg', { width: '100%', height: laneHeight, viewBox: `0 0 ${width} ${laneHeight}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': t('{a} of {b} denied', { a: lane.denied.count, b: lane.requests }) },
			lane.timeline.flatMap((c, i) => [bar('passed', i, 0, c.requests - c.denied), bar('denied', i, c.requests - c.denied, c.denied)])));
	}

	let polls = 0;
	return {
		node, result, run,
		async poll() {
			if (polls++ % 10 === 0) showBy((await get('rules')).rules);
		},
		close() {
			clearTimeout(typing);
			sequence++;
			for (const [kind, handle] of [['dragover', over], ['dragleave', left], ['drop', drop]]) root.removeEventListener(kind, handle);
		},
	};
}

// The simulator: one traffic under all algorithms, as lanes on one time axis. Requests
// that pass stand above a lane's line, denied ones hang below it. The daemon decides
// them, on its real engine; nothing is computed twice here.

import { post } from './api.js';
import { el, field, segmented, setAttribute, setText, svg } from './dom.js';
import { integer, seconds } from './format.js';
import { language, t, word } from './language.js';
import { logTraffic } from './logtraffic.js';

const traffics = [
	['steady', t('Steady'), t('One and a half times the limit, evenly spaced, for three periods')],
	['burst', t('One burst'), t('Twice the limit at one instant')],
	['edge', t('Window edge'), t('The whole limit just before a window ends, and again just after')],
	['retry-storm', t('Retry storm'), t('Twice the limit at once, again after every tenth of a period')],
	['poisson', t('Poisson'), t('The limit on average, at random, for three periods')],
	['own', t('Own list'), t('Arrivals that you write')],
	['log', t('Own log'), t('An access log or a recording that you drop here: only this daemon gets it, and keeps nothing of it')],
];

const examples = ['10/1s', '10/1s burst=5', '100/1m leaky-bucket', '5/day zone=Asia/Shanghai fixed-window', '600/1h sliding-log'];

const defaults = { limit: '10/1s', traffic: 'edge', arrivals: '0x8, 0.4, 0.9x8, 1.2:3' };

const halfHeight = 40; // of a lane, above and below its line
const laneHeight = 2 * halfHeight + 2;
const narrow = 480; // a picture below it has less room for marks side by side
const column = 7; // the width of a mark
const roundPitch = 6; // of marks on top of each other that still look like dots
const smallestPitch = 1.6; // below it, marks become bars
const abreastOn = { wide: 6, narrow: 3 }; // marks of one instant side by side, at most
const mostMarks = 2500; // in a lane, before marks become bars

// parseArrivals reads "0, 0.5x3, 1:4": a request at 0 s, three at 0.5 s, one of cost 4.
export function parseArrivals(text) {
	const all = [];
	for (const arrival of text.split(/[\s,;]+/).filter(Boolean)) {
		const match = /^(\d+(?:\.\d+)?|\.\d+)(?:x(\d{1,5}))?(?::(\d{1,13}))?$/.exec(arrival);
		if (!match) throw new Error(t('“{arrival}” is no arrival: write seconds, as 0.5, three at once as 0.5x3, a cost of 4 as 0.5:4.', { arrival }));
		const times = Math.min(Number(match[2] ?? 1), 20000);
		for (let i = 0; i < times; i++) all.push({ at: Number(match[1]), cost: Number(match[3] ?? 1) });
	}
	return all.sort((a, b) => a.at - b.at);
}

export function open(root, context) {
	let state = { ...defaults };
	let simulation = null; // the last answer
	let selected = null; // {lane, index}
	let scale = null; // of the pictures
	let sequence = 0;
	let typing = 0;
	const limit = el('input.mono.limit-input', {
		spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off',
		maxlength: '300', name: 'limit', oninput: () => change({ limit: limit.value }),
	});
	const burst = el('input', { type: 'range', min: '1', step: '1', name: 'burst', oninput: dragBurst });
	const burstValue = el('output');
	const burstField = el('label.field.burst',
		el('span.field-label', t('Burst'), ' ', burstValue), burst);
	const traffic = segmented(t('Traffic'), traffics, (value) => change({ traffic: value }));
	const arrivals = el('textarea.mono', {
		rows: '2', spellcheck: 'false', name: 'arrivals', oninput: () => change({ arrivals: arrivals.value }),
	});
	const arrivalsField = field(t('Arrivals'), arrivals, t('Seconds; 0.5x3 is three at once, 0.5:4 one of cost 4.'));
	const log = logTraffic(root, context, () => { if (state.traffic !== 'log') change({ traffic: 'log' }); else run(); });
	const problem = el('p.problem', { role: 'alert', hidden: true });
	const about = el('p.muted.about');
	const summary = el('p.summary', { role: 'status' });
	const lanes = el('section.card.lanes', { 'aria-label': t('Lanes') });
	const detail = el('p.detail', { role: 'status' });

	root.append(
		el('section.card.controls',
			el('div.controls-row',
				el('div.limit-field', field(t('Limit'), limit),
					el('div.chips', { role: 'group', 'aria-label': t('Examples') }, examples.map((text) =>
						el('button.chip.mono', { type: 'button', onclick: () => change({ limit: text }) }, text)))),
				burstField),
			el('div.controls-row', el('div.traffic', traffic, about)),
			arrivalsField, log.node, problem),
		summary, lanes, log.result, detail);

	const resize = new ResizeObserver(() => { if (simulation) draw(); });
	resize.observe(lanes);

	function change(part) {
		state = { ...state, ...part };
		selected = null;
		show();
		remember();
		clearTimeout(typing);
		typing = setTimeout(run, 100);
	}

	function remember() {
		context.remember({
			limit: state.limit, traffic: state.traffic, arrivals: state.traffic === 'own' ? state.arrivals : '',
			lane: selected?.lane, request: selected ? String(selected.index + 1) : '',
		});
	}

	function show() {
		if (limit.value !== state.limit) limit.value = state.limit;
		if (arrivals.value !== state.arrivals) arrivals.value = state.arrivals;
		traffic.set(state.traffic);
		setText(about, `${traffics.find(([name]) => name === state.traffic)?.[2] ?? ''}${t('.')}`);
		arrivalsField.hidden = state.traffic !== 'own';
		const isLog = state.traffic === 'log';
		log.node.hidden = log.result.hidden = !isLog;
		lanes.hidden = detail.hidden = summary.hidden = isLog;
		showBurst();
	}

	// The burst of a limit is part of its text; the slider edits that text.
	function showBurst() {
		const count = /^\s*(\d{1,9})\//.exec(state.limit);
		// Words without = are algorithms; only buckets have a burst.
		const bucket = state.limit.trim().split(/\s+/).slice(1).every((word) => /=|-bucket$/.test(word));
		burstField.hidden = !count || !bucket || Number(count[1]) < 1;
		if (burstField.hidden) return;
		const written = /\bburst=(\d{1,9})\b/.exec(state.limit);
		const value = Number(written?.[1] ?? count[1]);
		burst.max = String(Math.max(2 * Number(count[1]), value));
		burst.value = String(value);
		setText(burstValue, integer(value));
	}

	function dragBurst() {
		const text = /\bburst=\d+\b/.test(state.limit)
			? state.limit.replace(/\bburst=\d+\b/, `burst=${burst.value}`) : `${state.limit.trim()} burst=${burst.value}`;
		change({ limit: text });
	}

	async function run() {
		const mine = ++sequence;
		delete lanes.dataset.ready;
		const own = state.traffic === 'own';
		if (state.traffic === 'log') {
			simulation = null;
			try {
				await log.run(state.limit);
				if (mine === sequence) problem.hidden = true;
			} catch (error) {
				if (mine === sequence) showProblem(error, '');
			}
			return;
		}
		const asked = JSON.stringify([state.limit, state.traffic, own ? state.arrivals : '']);
		let answer;
		try {
			const body = { limit: state.limit, ...(own ? { arrivals: parseArrivals(state.arrivals) } : { traffic: state.traffic }) };
			answer = await context.attempt(() => post('v1/simulate', null, body));
		} catch (error) {
			if (mine === sequence) showProblem(error, asked);
			return;
		}
		if (mine !== sequence || answer === undefined) return;
		simulation = answer;
		problem.hidden = true;
		lanes.classList.remove('stale');
		setText(summary, summarize(answer));
		draw();
		lanes.dataset.ready = asked;
	}

	function showProblem(error, asked) {
		setText(problem, error.message);
		problem.hidden = false;
		lanes.classList.add('stale');
		setText(summary, '');
		lanes.dataset.ready = asked;
	}

	function draw() {
		lanes.replaceChildren(...simulation.lanes.map(laneRow), axisRow());
		const pictures = lanes.querySelectorAll('.lane-picture');
		scale = newScale(simulation, Math.max(pictures[0].clientWidth, 120));
		simulation.lanes.forEach((lane, i) => pictures[i].append(lane.error ? el('p.muted', lane.error) : picture(lane)));
		pictures[simulation.lanes.length].append(axis());
		showSelected();
	}

	function laneRow(lane) {
		return el('div', { class: `lane${lane.written ? ' written' : ''}`, 'data-algorithm': lane.algorithm },
			el('div.lane-name',
				el('strong', lane.algorithm),
				lane.written ? el('span.tag', t('as written')) : null,
				el('code', lane.limit)),
			el('div.lane-picture'),
			el('dl.lane-figures',
				el('div', el('dt', t('passed')), el('dd.passed', { 'data-figure': 'passed' }, lane.error ? '–' : t('{a} of {b}', { a: lane.passed, b: lane.offered }))),
				el('div', el('dt', t('most in any {time}', { time: seconds(lane.period) })),
					el('dd.most', { 'data-figure': 'most' }, lane.error ? '–' : integer(lane.most_in_period),
						lane.error ? null : el('span.bound.muted', ` ${t('of at most {m}', { m: lane.at_most })}`)))));
	}

	function picture(lane) {
		const drawing = svg('svg', {
			width: scale.width, height: laneHeight, viewBox: `0 0 ${scale.width} ${laneHeight}`, tabindex: '0', role: 'group',
			'aria-label': t('{algorithm}: {a} of {b} passed, at most {m} in any {time}. Arrow keys walk through the requests.', { algorithm: lane.algorithm, a: lane.passed, b: lane.offered, m: lane.most_in_period, time: seconds(lane.period) }),
		});
		drawing.append(...grid(), ...worst(lane), ...edge(lane),
			svg('line.lane-line', { x1: 0, x2: scale.width, y1: halfHeight + 1, y2: halfHeight + 1 }),
			...scale.marks(lane), svg('g.pick'));
		drawing.addEventListener('click', (event) => pick(lane, drawing, event));
		drawing.addEventListener('keydown', (event) => walk(lane, event));
		return drawing;
	}

	// edge marks where the first window of a lane on the clock ends: half a period after the
	// start, which is how the daemon chooses the start.
	function edge(lane) {
		if (lane.algorithm !== 'fixed-window' || !/ align=| zone=|\/(second|minute|hour|day|week|month|year)/.test(lane.limit)) return [];
		const x = scale.x(lane.period / 2);
		return [svg('line.edge', { x1: x, x2: x, y1: 0, y2: laneHeight }), svg('text.tick', { x: x + 6, y: laneHeight - 4 }, t('window ends'))];
	}

	const grid = () => scale.ticks.map((t) =>
		svg('line.grid', { x1: scale.x(t), x2: scale.x(t), y1: 0, y2: laneHeight }));

	// worst marks the period in which the most units passed, if that is above the count.
	function worst(lane) {
		if (!lane.exceeds) return [];
		const from = scale.x(busiest(lane));
		const to = Math.min(scale.x(busiest(lane) + lane.period), scale.width);
		return [svg('rect.worst', { x: from - column / 2, y: 0, width: Math.max(to - from, column), height: halfHeight })];
	}

	const axisRow = () => el('div.lane.lane-axis', el('div.lane-name.legend',
		['passed', 'delayed', 'denied'].map((kind) => el(`span.key-${kind}`, word(kind)))), el('div.lane-picture'), el('div.lane-figures'));

	// tickText is a time of the axis: by the clock where the limit's windows follow a calendar.
	function tickText(t) {
		if (!simulation.start) return seconds(t);
		const clock = new Date(Date.parse(`${simulation.start}Z`) + t * 1000).toISOString();
		return scale.ticks[1] < 86400 ? clock.slice(11, 16) : clock.slice(0, 10);
	}

	const axis = () => svg('svg', { width: scale.width, height: 22, 'aria-hidden': 'true' }, scale.ticks.map((t) => {
		const x = Math.min(Math.max(scale.x(t), 14), scale.width - 16);
		return svg('text.tick', { x, y: 15, 'text-anchor': 'middle' }, tickText(t));
	}));

	function pick(lane, drawing, event) {
		const box = drawing.getBoundingClientRect();
		const index = nearest(lane, scale, event.clientX - box.left, event.clientY - box.top > halfHeight + 1);
		if (index >= 0) select(lane, index);
	}

	function walk(lane, event) {
		const last = lane.results.length - 1;
		const now = selected?.lane === lane.algorithm ? selected.index : -1;
		const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: last }[event.key];
		if (next === undefined) return;
		event.preventDefault();
		select(lane, Math.max(0, Math.min(next, last)));
	}

	function select(lane, index) {
		selected = { lane: lane.algorithm, index };
		remember();
		showSelected();
	}

	function showSelected() {
		for (const g of lanes.querySelectorAll('.pick')) g.replaceChildren();
		const lane = simulation?.lanes.find((l) => l.algorithm === selected?.lane);
		const result = lane?.results[selected.index];
		setAttribute(detail, 'data-kind', result ? kindOf(result) : null);
		if (!result) {
			setText(detail, t('Click a request, or walk with the arrow keys, to see what its caller was told.'));
			return;
		}
		setText(detail, describe(lane, result, selected.index));
		const group = lanes.querySelector(`[data-algorithm="${lane.algorithm}"] .pick`);
		group?.append(...pointer(result));
	}

	function pointer(result) {
		const y = halfHeight + 1;
		const x = scale.x(result.at);
		const ring = svg('circle', { class: `pointer pointer-${kindOf(result)}`, cx: x, cy: y, r: 5 });
		const wait = result.allowed ? result.delay : result.retry_after;
		if (!wait) return [ring];
		const end = Math.min(scale.x(result.at + wait), scale.width - 2);
		return [ring, svg('path', {
			class: `pointer pointer-${kindOf(result)}`, d: `M${x} ${y}H${end}m-5 -4l5 4l-5 4M${end} ${y - halfHeight + 6}V${y + halfHeight - 6}`,
		})];
	}

	return {
		update(parameters) {
			const next = {
				limit: parameters.get('limit') ?? defaults.limit,
				traffic: traffics.some(([name]) => name === parameters.get('traffic')) ? parameters.get('traffic') : defaults.traffic,
				arrivals: parameters.get('arrivals') ?? (state.arrivals || defaults.arrivals),
			};
			const request = Number.parseInt(parameters.get('request') ?? '', 10);
			selected = parameters.get('lane') && request > 0 ? { lane: parameters.get('lane'), index: request - 1 } : null;
			state = next;
			show();
			run();
		},
		async poll() {
			if (state.traffic === 'log') await log.poll();
			await context.pollHealth();
		},
		close: () => { resize.disconnect(); log.close(); clearTimeout(typing); sequence++; },
	};
}

const actsAt = (r) => r.at + r.delay;
const kindOf = (r) => (!r.allowed ? 'denied' : r.delay > 0 ? 'delayed' : 'passed');
const placeOf = (r) => (r.allowed ? actsAt(r) : r.at);

// busiest returns the beginning of the period in which the most units act.
function busiest(lane) {
	const passed = lane.results.filter((r) => r.allowed).sort((a, b) => actsAt(a) - actsAt(b));
	let units = 0, first = 0, most = 0, from = 0;
	for (const r of passed) {
		units += r.cost;
		// Times are exact to the nanosecond; the subtraction of two is not.
		while (actsAt(r) - actsAt(passed[first]) > lane.period - 5e-10) units -= passed[first++].cost;
		if (units > most) {
			most = units;
			from = actsAt(passed[first]);
		}
	}
	return from;
}

// summarize returns the daemon's summary, which is English, in the page's language.
function summarize(answer) {
	if (language === 'en') return answer.summary;
	const written = answer.lanes.find((l) => l.written);
	const worst = answer.lanes.reduce((a, b) => (b.exceeds && !(a?.most_in_period >= b.most_in_period) ? b : a), undefined);
	return [written, worst === written ? undefined : worst].filter(Boolean).map((l) => {
		const values = { algorithm: l.algorithm, a: l.passed, b: l.offered, m: l.most_in_period, time: seconds(l.period), count: l.count };
		if (l.error) return t('{algorithm} cannot have this limit.', values);
		return l.exceeds ? t('{algorithm} passes {a} of {b}, up to {m} in one period of {time} (limit {count}).', values)
			: t('{algorithm} passes {a} of {b}, never more than {m} in one period of {time} (limit {count}).', values);
	}).join('');
}

function describe(lane, r, index) {
	const cost = r.cost === 1 ? '' : t(', cost {c}', { c: r.cost });
	const start = t('{algorithm}, request {a} of {b}, at {time}{cost}: ', { algorithm: lane.algorithm, a: index + 1, b: lane.results.length, time: seconds(r.at), cost });
	if (r.allowed && r.delay > 0) return start + t('allowed, to act after {delay}, at {time}.', { delay: seconds(r.delay), time: seconds(actsAt(r)) });
	if (r.allowed) return start + t('allowed.');
	if (r.retry_after === null) return start + t('denied for good: it costs more than the limit ever grants.');
	return start + t('denied, RetryAfter {wait}: alone, the same request passes at {time}.', { wait: seconds(r.retry_after), time: seconds(r.at + r.retry_after) });
}

// nearest returns the request next to a place in the picture, denied ones if it is
// below the line.
function nearest(lane, scale, x, below) {
	let best = -1, distance = Infinity;
	lane.results.forEach((r, i) => {
		const d = Math.abs(scale.x(placeOf(r)) - x) + (r.allowed === below ? 1e4 : 0);
		if (d < distance) {
			distance = d;
			best = i;
		}
	});
	return best;
}

// newScale returns how times and requests are placed, which is the same in all lanes.
function newScale(simulation, width) {
	let length = 0;
	for (const lane of simulation.lanes) {
		length = Math.max(length, lane.period);
		for (const r of lane.results) length = Math.max(length, placeOf(r));
	}
	const most = width < narrow ? abreastOn.narrow : abreastOn.wide;
	const margin = most * column / 2 + 2;

	const x = (t) => margin + (t / length) * (width - 2 * margin);
	const bins = new Map(simulation.lanes.map((lane) => [lane.algorithm, binsOf(lane, x)]));
	const highest = Math.max(1, ...[...bins.values()].flatMap((lane) => [...lane.values()].map((bin) => Math.max(bin.above.length, bin.below.length))));
	const abreast = abreastOf(bins, highest, most);
	const pitch = Math.min((halfHeight - 3) / Math.ceil(highest / abreast), column);
	const asBars = pitch < smallestPitch || simulation.lanes.some((l) => l.results.length > mostMarks);
	return { width, x, ticks: ticksOf(length, width), marks: (lane) => marksOf(bins.get(lane.algorithm), pitch, abreast, asBars) };
}

// abreastOf returns how many marks of one instant stand side by side: as few as make them
// look like dots, and not more than there is room for before the next instant.
function abreastOf(bins, highest, most) {
	let room = most;
	for (const lane of bins.values()) {
		const columns = [...lane.keys()].sort((a, b) => a - b);
		for (let i = 1; i < columns.length; i++) room = Math.min(room, columns[i] - columns[i - 1] - 1);
	}
	room = Math.max(room, 1);
	for (let n = 1; n < room; n++) if ((halfHeight - 3) / Math.ceil(highest / n) >= roundPitch) return n;
	return room;
}

function binsOf(lane, x) {
	const bins = new Map();
	for (const r of lane.results) {
		const at = Math.round(x(placeOf(r)) / column);
		if (!bins.has(at)) bins.set(at, { x: x(placeOf(r)), above: [], below: [] });
		bins.get(at)[r.allowed ? 'above' : 'below'].push(r);
	}
	return bins;
}

function marksOf(bins, pitch, abreast, asBars) {
	const all = [];
	for (const bin of bins.values()) {
		for (const [side, requests] of [[-1, bin.above], [1, bin.below]]) {
			if (requests.length === 0) continue;
			all.push(...(asBars ? bar(bin.x, side, requests, pitch / abreast) : stack(bin.x, side, requests, pitch, abreast)));
		}
	}
	return all;
}

function stack(x, side, requests, pitch, abreast) {
	const across = Math.min(abreast, requests.length);
	const height = pitch > 4 ? pitch - 1.2 : Math.max(pitch - 0.5, 1);
	const width = column - 1.2;
	return requests.map((r, i) => {
		const y = halfHeight + 1 + side * (2 + Math.floor(i / across) * pitch) - (side < 0 ? height : 0);
		const left = x + (i % across - across / 2) * column + (column - width) / 2;
		const denied = kindOf(r) === 'denied' && height > 4;
		const inset = denied ? 0.7 : 0; // half of the ring's line
		return svg('rect', {
			class: `mark mark-${kindOf(r)}${denied ? ' ring' : ''}`, 'data-n': 1, 'data-at': r.at,
			x: round(left + inset), y: round(y + inset), width: round(width - 2 * inset), height: round(height - 2 * inset),
			rx: round(Math.min(width, height) / 2),
		});
	});
}

// bar draws many requests as one mark for each kind.
function bar(x, side, requests, pitch) {
	const all = [];
	let from = 2;
	for (const kind of ['passed', 'delayed', 'denied']) {
		const n = requests.filter((r) => kindOf(r) === kind).length;
		if (n === 0) continue;
		const height = Math.max(n * pitch, 1);
		const inset = kind === 'denied' && height > 4 ? 0.7 : 0; // a ring, as in the legend
		all.push(svg('rect', {
			class: `mark mark-${kind}${inset ? ' ring' : ''}`, 'data-n': n, x: round(x - column / 2 + 0.6 + inset), width: column - 1.2 - 2 * inset,
			y: round(halfHeight + 1 + (side < 0 ? -from - height : from) + inset), height: round(height - 2 * inset),
		}));
		from += height;
	}
	return all;
}

const round = (n) => Math.round(n * 100) / 100;

function ticksOf(length, width) {
	const rough = length / Math.max(Math.min(width / 110, 8), 2);
	const power = 10 ** Math.floor(Math.log10(rough));
	const steps = rough < 60 ? [1, 2, 5, 10].map((s) => s * power) : [60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000, 7776000, 31536000];
	const step = steps.find((s) => s >= rough) ?? steps.at(-1);
	const all = [];
	for (let i = 0; i * step <= length * 1.0001 && all.length < 40; i++) all.push(Number((i * step).toPrecision(12)));
	return all;
}


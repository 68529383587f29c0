// Pictures of numbers over time: the large chart by uPlot, sparklines and ranges as SVG.

import { el, setText, svg } from './dom.js';
import { compact, rate, seconds } from './format.js';
import { t, word } from './language.js';

// A canvas needs colors as numbers; a hidden element resolves those of the style sheet.
const probe = el('span', { hidden: true });

document.body.append(probe);

function color(name, alpha) {
	probe.style.color = alpha === undefined ? `var(--${name})` : `color-mix(in srgb, var(--${name}) ${alpha * 100}%, transparent)`;
	return getComputedStyle(probe).color;
}

const twoDigits = (n) => String(n).padStart(2, '0');

// clockTime formats a time of the axis; steps below a minute show seconds.
function clockTime(unix, step) {
	const d = new Date(unix * 1000);
	const text = `${twoDigits(d.getHours())}:${twoDigits(d.getMinutes())}`;
	return step < 60 ? `${text}:${twoDigits(d.getSeconds())}` : text;
}

// The layers of the chart, the lowest first.
const layers = [
	{ name: 'allowed', color: 'accent' },
	{ name: 'shadowed', color: 'shadow' },
	{ name: 'denied', color: 'denied' },
	{ name: 'errors', color: 'error' },
];

// rateChart shows decisions a second by outcome, on top of each other, as areas.
export function rateChart() {
	const box = el('div.chart', { 'aria-hidden': 'true' });
	const values = layers.map(() => el('span', '–'));
	const when = el('span.muted.when');
	const legend = el('div.chart-legend',
		layers.map((layer, i) => el('span', { class: `legend-item ${layer.color}` }, word(layer.name), values[i])), when);
	let plot = null;
	let series = null;
	let step = 1;

	function options() {
		const axis = { stroke: color('muted'), font: `11px ${getComputedStyle(document.body).fontFamily}`, grid: { stroke: color('line'), width: 1 }, ticks: { show: false } };
		return {
			width: Math.max(box.clientWidth, 100), height: 220, padding: [8, 24, 0, 0],
			legend: { show: false },
			cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
			scales: { y: { range: (u, min, max) => [0, Math.max(max * 1.1, 1)] } },
			axes: [
				{ ...axis, size: 30, space: 80, values: (u, splits) => splits.map((s) => clockTime(s, step)) },
				{ ...axis, size: 46, values: (u, splits) => splits.map((s) => (s < 10 ? s : compact(s))) },
			],
			// Each line is the sum of the layers up to its own, and each band the space between two.
			series: [{}, ...[...layers].reverse().map((layer) => ({
				stroke: color(layer.color), width: 1.25, fill: color(layer.color, 0.2), points: { show: false },
				paths: uPlot.paths.stepped({ align: 1 }),
			}))],
			bands: layers.slice(1).map((layer, i) => ({ series: [i + 1, i + 2], fill: color([...layers].reverse()[i].color, 0.28) })),
			hooks: { setCursor: [(u) => showValues(u.cursor.idx)] },
		};
	}

	function showValues(index) {
		const i = index ?? (series ? series.allowed.length - 1 : -1);
		layers.forEach((layer, n) => setText(values[n], i < 0 ? '–' : t('{rate}/s', { rate: rate(perSecond(series[layer.name], i)) })));
		setText(when, i < 0 ? '' : index === null || index === undefined ? t('last {time}', { time: seconds(step) }) : clockTime(series.from + i * step, 1));
	}

	// The last step may still be incomplete.
	const perSecond = (all, i) => all[i] / (i === all.length - 1 ? Math.max(series.last, 1) : step);

	function data() {
		const times = series.allowed.map((_, i) => series.from + i * step);
		const sums = [];
		for (const layer of layers) {
			const below = sums.at(-1);
			sums.push(series[layer.name].map((_, i, all) => perSecond(all, i) + (below ? below[i] : 0)));
		}
		return [times, ...sums.reverse()];
	}

	function rebuild() {
		plot?.destroy();
		plot = null;
		if (series) plot = new uPlot(options(), data(), box);
	}

	const resize = new ResizeObserver(() => {
		if (plot && box.clientWidth !== plot.width) plot.setSize({ width: Math.max(box.clientWidth, 100), height: 220 });
	});
	resize.observe(box);
	addEventListener('themechange', rebuild);
	return {
		node: el('div', legend, box),
		set(next) {
			const before = step;
			series = next;
			step = next.step;
			if (!plot || before !== step) rebuild();
			else plot.setData(data());
			showValues(plot.cursor.idx);
		},
		close() {
			resize.disconnect();
			removeEventListener('themechange', rebuild);
			plot?.destroy();
		},
	};
}

// sparkline draws two series as areas: all of them, and the part that was denied.
export function sparkline(all, part, width = 120, height = 24) {
	if (all.length === 0) [all, part] = [[0], [0]];
	const highest = Math.max(...all, 1);

	const area = (numbers) => {
		const last = Math.max(numbers.length - 1, 1);
		const points = numbers.map((n, i) => `${(i / last * width).toFixed(1)} ${(height - n / highest * (height - 2)).toFixed(1)}`);
		return `M0 ${height}L${points.join('L')}L${width} ${height}Z`;
	};
	return svg('svg.sparkline', { width, height, viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' },
		svg('path.spark-all', { d: area(all) }), svg('path.spark-part', { d: area(part) }));
}

const shortest = 1e-6;
const longest = 10;

// latencyRange draws three quantiles on a logarithmic axis from 1 µs to 10 s.
export function latencyRange(p50, p90, p99, width = 132) {
	const x = (s) => Math.log10(Math.max(s, shortest) / shortest) / Math.log10(longest / shortest) * (width - 8) + 4;
	const drawing = svg('svg.range', { width, height: 18, viewBox: `0 0 ${width} 18`, 'aria-hidden': 'true' });
	for (let s = shortest; s <= longest * 1.01; s *= 1000) drawing.append(svg('line.range-tick', { x1: x(s), x2: x(s), y1: 4, y2: 14 }));
	drawing.append(svg('line.range-axis', { x1: 4, x2: width - 4, y1: 9, y2: 9 }));
	if (p50 !== null && p99 !== null) {
		drawing.append(
			svg('line.range-span', { x1: x(p50), x2: x(p99), y1: 9, y2: 9 }),
			svg('circle.range-p50', { cx: x(p50), cy: 9, r: 3.5 }),
			svg('line.range-p90', { x1: x(p90), x2: x(p90), y1: 5, y2: 13 }),
			svg('line.range-p99', { x1: x(p99), x2: x(p99), y1: 3, y2: 15 }));
	}
	return drawing;
}

// shareBar shows a part of a whole; its width is a CSS variable, set by script.
export function shareBar(kind) {
	const fill = el('span', { class: `bar-fill ${kind}` });
	const node = el('span.share-bar', { 'aria-hidden': 'true' }, fill);
	node.set = (share) => { fill.style.width = `${Math.max(0, Math.min(share, 1)) * 100}%`; };
	return node;
}

// Charts of the last minutes, drawn by uPlot, which is loaded before the modules, and bars of what is ahead.

import { h } from './dom.js';
import { count, duration, instant, now } from './format.js';

// titles are the words for counters and lengths of the API.
export const titles = {
  publish: 'Published', confirm: 'Confirmed', deliver_get: 'Delivered', redeliver: 'Redelivered', ack: 'Acknowledged', return_unroutable: 'Returned, without a route',
  messages_ready: 'Ready', messages_unacknowledged: 'Unacknowledged',
};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Chart draws lines over time. lines are [one of titles, name of a colour]; write writes a value.
export class Chart {
  #plot;
  #data;

  constructor(view, label, lines, write) {
    Object.assign(this, { lines: lines.map(([name, colour]) => [titles[name], colour]), write, label });
    this.element = h('figure', { class: 'chart', role: 'img', 'aria-label': label });
    const fit = new ResizeObserver(() => this.#plot?.setSize(this.#size()));
    fit.observe(this.element);
    const dark = matchMedia('(prefers-color-scheme: dark)');
    dark.addEventListener('change', () => this.#draw(), { signal: view.signal });
    view.signal.addEventListener('abort', () => {
      fit.disconnect();
      this.#plot?.destroy();
    });
  }

  #size() {
    return { width: Math.max(200, this.element.clientWidth), height: 220 };
  }

  #draw() {
    if (!this.#data) return;
    this.#plot?.destroy();
    const axis = { stroke: colour('--soft'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line'), width: 1 } };
    this.#plot = new globalThis.uPlot({
      ...this.#size(),
      series: [{ label: 'Time', value: (_, at) => (at === null ? '–' : instant(1000 * at)) }, ...this.lines.map(([label, name]) => ({ label, stroke: colour(name), width: 2, points: { show: false }, value: (_, v) => (v === null ? '–' : this.write(v)) }))],
      axes: [{ ...axis, values: (_, list) => list.map((at) => instant(1000 * at).slice(11, 19)) }, { ...axis, size: 70, values: (_, list) => list.map((v) => this.write(v)) }],
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      legend: { live: true },
    }, this.#data, this.element);
  }

  // show draws columns: instants in seconds, ascending, and the values of each line at these.
  show(columns) {
    this.#data = columns;
    if (this.#plot) this.#plot.setData(columns);
    else this.#draw();
    this.element.setAttribute('aria-label', `${this.label}: ${this.lines.map(([name], i) => `${name} ${this.write(columns[i + 1].at(-1))}`).join(', ')}`);
  }
}

// step is how far apart samples are, in seconds, and span how many minutes of them are shown.
export const step = 5;
export const span = 600;

// samplesOf asks the node for samples of counts and of lengths.
export const samples = { msg_rates_age: span, msg_rates_incr: step, lengths_age: span, lengths_incr: step };

// ratesOf makes columns of rates from the samples of counters, which are sums, newest first.
export function ratesOf(stats, names) {
  const lists = names.map((name) => stats?.[`${name}_details`]?.samples ?? []);
  return columnsOf(lists, (list, i) => Math.max(0, (list[i].sample - list[i + 1].sample) / step), 1);
}

// lengthsOf makes columns of the samples themselves.
export function lengthsOf(object, names) {
  return columnsOf(names.map((name) => object?.[`${name}_details`]?.samples ?? []), (list, i) => list[i].sample, 0);
}

function columnsOf(lists, value, fewer) {
  const longest = lists.reduce((a, b) => (b.length > a.length ? b : a), []);
  const length = Math.max(0, longest.length - fewer);
  if (length === 0) {
    const at = Math.floor(now() / 1000);
    return [[at - span, at], ...lists.map(() => [null, null])]; // not known
  }
  const at = [], columns = lists.map(() => []);
  for (let i = length - 1; i >= 0; i--) {
    at.push(longest[i].timestamp / 1000);
    lists.forEach((list, k) => columns[k].push(i + fewer < list.length ? value(list, i) : 0));
  }
  return [at, ...columns];
}

// bars draws counts of what is ahead. spanOf says from when to when a count is, in ms from now; what
// says the same in words; a key keeps the bars as long as it is the same.
export function bars(counts, spanOf, what, key) {
  const top = Math.max(...counts);
  const list = counts.map((n, i) => {
    const [from, to] = spanOf(i);
    const bar = h('span', { class: n > 0 ? 'bar' : 'bar zero', title: `${count(n)} in ${duration(from)} to ${duration(to)}` });
    bar.style.height = `${n > 0 ? Math.max(4, 100 * n / top) : 0}%`;
    return bar;
  });
  return h('figure', { class: 'timeline', data: { key } }, h('div', { class: 'bars', role: 'img', 'aria-label': what }, list),
    h('div', { class: 'ends' }, h('span', null, 'now'), h('span', null, `in ${duration(spanOf(counts.length - 1)[1])}`)), h('figcaption', null, `${what}.`));
}

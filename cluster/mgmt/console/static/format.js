// How numbers and times are written.

import { h } from './dom.js';

let ahead = 0; // ms by which the node's clock is ahead of this one's

// observe learns the node's time from an answer. The header counts whole seconds: what could be
// rounding is ignored.
export function observe(date) {
  const at = Date.parse(date);
  if (Number.isNaN(at)) return;
  const by = at + 500 - Date.now();
  ahead = Math.abs(by) > 2000 ? by : 0;
}

// now is the node's time, in ms since the epoch.
export const now = () => Date.now() + ahead;

const whole = new Intl.NumberFormat('en');
const short = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

export const count = (n) => (n === undefined || n === null ? '–' : whole.format(n));
// several is a number of things.
export const several = (n, what) => `${count(n)} ${what}${n === 1 ? '' : 's'}`;
export const rate = (n) => (n === undefined || n === null ? '–' : `${short.format(n)}/s`);

// rateOf is the rate of a counter in message_stats.
export const rateOf = (stats, name) => stats?.[`${name}_details`]?.rate;

export function bytes(n) {
  if (n === undefined || n === null) return '–';
  let i = 0;
  for (; n >= 1024 && i < 4; i++) n /= 1024;
  return `${short.format(n)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][i]}`;
}

// held says how much memory a node holds for clients, and for what.
export const held = (m) => `${bytes(m.total)}: channels ${bytes(m.channels)}, unconfirmed publishes ${bytes(m.publishes)}, unsent answers ${bytes(m.answers)}${m.http ? `, HTTP API ${bytes(m.http)}` : ''}`;

// duration writes milliseconds with the two largest units.
export function duration(ms) {
  if (ms === undefined || ms === null) return '–';
  const sign = ms < 0 ? '−' : '';
  ms = Math.abs(ms);
  if (ms < 1000) return `${sign}${Math.round(ms)} ms`;
  const s = Math.floor(ms / 1000);
  const parts = [[Math.floor(s / 86400), 'd'], [Math.floor(s / 3600) % 24, 'h'], [Math.floor(s / 60) % 60, 'min'], [s % 60, 's']];
  const first = parts.findIndex(([n]) => n > 0);
  return sign + parts.slice(first, first + 2).filter(([n], i) => n > 0 || i === 0).map(([n, unit]) => `${n} ${unit}`).join(' ');
}

// instant is how every point in time is written.
export const instant = (ms) => new Date(ms).toISOString().replace('T', ' ').replace('Z', ' UTC');

// left shows how long it is until an instant, and counts down. Nothing for 0 and for none.
export function left(ms) {
  if (!ms) return '–';
  const e = h('time', { class: 'left', data: { at: ms, form: 'left' }, datetime: new Date(ms).toISOString(), title: instant(ms) });
  e.textContent = leftText(ms);
  return e;
}

function leftText(ms) {
  const by = ms - now();
  return by > 0 ? `in ${duration(Math.ceil(by / 1000) * 1000)}` : 'due';
}

// ago shows how long ago an instant was.
export function ago(ms) {
  if (!ms) return '–';
  const e = h('time', { data: { at: ms, form: 'ago' }, datetime: new Date(ms).toISOString(), title: instant(ms) });
  e.textContent = agoText(ms);
  return e;
}

const agoText = (ms) => `${duration(Math.max(0, Math.floor((now() - ms) / 1000) * 1000))} ago`;

setInterval(() => {
  for (const e of document.querySelectorAll('time[data-at]')) {
    const text = e.dataset.form === 'ago' ? agoText(Number(e.dataset.at)) : leftText(Number(e.dataset.at));
    if (e.textContent !== text) e.textContent = text;
  }
}, 1000);

// json writes a value for people, on one line.
export const json = (value) => JSON.stringify(value);

// terms lists the entries of an object, such as arguments; a dash if there are none.
export function terms(object) {
  const entries = Object.entries(object ?? {});
  if (entries.length === 0) return '–';
  return h('span', { class: 'terms' }, entries.map(([name, value], i) => [i > 0 && ', ', h('code', null, `${name}: ${typeof value === 'string' ? value : json(value)}`)]));
}

// The settings of a queue: what its declaration and its policies say, what holds, and why.

import { get, path, post } from './client.js';
import { badge, button, fill, h, pairs } from './dom.js';
import { count, duration, json, terms } from './format.js';
import { scrolled } from './table.js';
import { dialog } from './view.js';

// inMilliseconds are the settings that are times in ms.
const inMilliseconds = /^(message-ttl|min-ttl|expires|auto-delete-on-idle|consumer-(disconnected-)?timeout|delivery-delay|dedup-window|lock-duration|max-lock-duration|delayed-retry-(min|max))$/;

// effective is the value of a setting that holds for a queue, as the node says; undefined if nobody has given one.
export const effective = (q, key) => q.settings.find((s) => s.key === key)?.effective;

// settingsOf shows each setting with what the queue's declaration and its policies say of it.
export async function settingsOf(view, q, into) {
  const find = async (kind, name) => (name ? (await get(path(kind, q.vhost, name), null, { signal: view.signal }).catch(() => null)) : null);
  const policy = await find('policies', q.policy), operator = await find('operator-policies', q.operator_policy);
  const value = (key, v) => (v === undefined ? '–' : [h('code', null, json(v)), inMilliseconds.test(key) && Number.isFinite(v) && ` ms (${duration(v)})`]);
  const head = (title, name, p) => [title, name && [' ', h('code', null, name)], p && h('small', null, ` priority ${p.priority}, pattern `, h('code', null, p.pattern))];
  const rows = q.settings.map((s) => h('tr', null, h('th', { scope: 'row' }, s.key), ['argument', 'policy', 'operator_policy'].map((side) => h('td', null, value(s.key, s[side]))),
    h('td', null, value(s.key, s.effective), ' ', h('small', null, `the ${s.by}'s`, s.rule && s.rule !== `the ${s.by}'s` && `: ${s.rule}`))));
  fill(into, q.settings_in_force === false && h('p', { class: 'notice' }, 'The queue has not taken up the newest settings yet.'),
    rows.length === 0 ? h('p', null, 'No argument and no policy says anything of this queue.') : scrolled('Settings', json([q.settings, policy, operator]), h('table', null,
      h('caption', null, 'Settings and where they come from'),
      h('thead', null, h('tr', null, ['Setting', head('Argument'), head('Policy', q.policy, policy), head('Operator policy', q.operator_policy, operator), 'In force'].map((t) => h('th', { scope: 'col' }, t)))),
      h('tbody', null, rows))),
    pairs([['Dead-letter strategy', q.dead_letter_strategy], ['Delivery limit', q.delivery_limit < 0 ? 'none' : count(q.delivery_limit)], ['Arguments', terms(q.arguments)]]),
    view.may('policymaker') && h('div', { class: 'buttons' }, button('Why these policies?', () => why(view, q), { data: { key: `why ${q.policy} and ${q.operator_policy}` } })));
}

// most is how many policies of a virtual host are tried, and atOnce how many at a time.
const most = 100, atOnce = 8;

// why lists the policies that match a queue, by trying each: the one with the highest priority holds.
function why(view, q) {
  const result = h('div', { 'aria-live': 'polite' }, 'Trying each policy …');
  dialog(`Policies that match ${q.name}`, result, 'Close', () => true, { wide: true });
  const kinds = [['policies', 'Policies'], ...(view.may('administrator') ? [['operator-policies', 'Operator policies']] : [])];
  Promise.all(kinds.map(([kind, title]) => matching(view, kind, title, q))).then((parts) => fill(result, parts), (failure) => fill(result, failure.message));
}

async function matching(view, kind, title, q) {
  const all = await get(path(kind, q.vhost), { page: 1, page_size: most, sort: 'priority', sort_reverse: true }, { signal: view.signal });
  const one = new URLSearchParams({ page: 1, page_size: 1, use_regex: true, name: `^${q.name.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')}$` });
  const found = [];
  for (let i = 0; i < all.items.length; i += atOnce) {
    const tried = await Promise.all(all.items.slice(i, i + atOnce).map(async (p) => [p, (await post(`${path(kind, q.vhost, p.name, 'try')}?${one}`, p)).items.length > 0]));
    found.push(...tried.filter(([, matches]) => matches).map(([p]) => p));
  }
  const holds = kind === 'policies' ? q.policy : q.operator_policy;
  return [
    h('h3', null, title), found.length === 0 ? h('p', null, 'None matches.') : h('ol', null, found.map((p) => h('li', null, h('strong', null, p.name), ` priority ${p.priority}, pattern `, h('code', null, p.pattern), ' ', terms(p.definition), ' ',
      p.name === holds && badge('in effect', 'good')))),
    all.total_count > all.items.length && h('p', null, `Of ${count(all.total_count)} policies, the ${count(all.items.length)} with the highest priorities were tried.`),
  ];
}

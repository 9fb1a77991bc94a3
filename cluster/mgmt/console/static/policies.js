// Policies and operator policies, and what one would change before it is set.

import { path, post, put, remove } from './client.js';
import { badge, button, fill, h, link, place } from './dom.js';
import { count, json, terms } from './format.js';
import { paged, scrolled } from './table.js';
import { vhostNames } from './queues.js';
import { area, confirm, field, input, object, section, select } from './view.js';

const kinds = { policies: 'Policies', 'operator-policies': 'Operator policies' };
const applies = ['all', 'queues', 'quorum_queues', 'classic_queues', 'exchanges'];

export function policies(view) {
  const lists = Object.entries(kinds).filter(([kind]) => kind === 'policies' || view.may('policymaker')).map(([kind, title]) => section(title, paged(view, title, path(kind), columns(kind), {
    key: (p) => `${p.vhost}\n${p.name}`, by: 'name', kept: false, // there are two
  })));
  const result = h('div', { 'aria-live': 'polite' });
  const form = h('div');
  view.show('Policies', ...lists, view.may('policymaker') && section('Try or set a policy', form, result));
  if (!view.may('policymaker')) return;

  const vhost = select('vhost', []), name = input('name', { required: true }), kind = select('kind', Object.entries(kinds).filter(([k]) => k === 'policies' || view.may('administrator')), 'policies');
  const pattern = input('pattern', { required: true }), applyTo = select('apply', applies, 'all'), priority = input('priority', { inputmode: 'numeric', pattern: '-?[0-9]+', required: true, value: '0' });
  const definition = area('definition', { rows: 4 }, '{"message-ttl": 60000}');
  fill(form, h('form', { class: 'policy', on: { submit: set } },
    h('div', { class: 'columns' }, field('Virtual host', vhost), field('Kind', kind), field('Name', name), field('Pattern', pattern, 'A regular expression of the PCRE2 dialect; it matches anywhere in a name'), field('Applies to', applyTo), field('Priority', priority, 'The highest wins')),
    field('Definition', definition, 'A JSON object'), h('div', { class: 'buttons' }, button('Try', attempt, { class: 'primary' }), h('button', { type: 'submit' }, 'Set'))));
  view.edit = (k, p) => {
    kind.value = k;
    vhost.value = p.vhost;
    name.value = p.name;
    pattern.value = p.pattern;
    applyTo.value = p['apply-to'];
    priority.value = p.priority;
    definition.value = JSON.stringify(p.definition, null, 2);
    form.scrollIntoView();
    name.focus();
  };
  const at = (...more) => path(kind.value, vhost.value, name.value, ...more);
  const body = () => ({ pattern: pattern.value, 'apply-to': applyTo.value, priority: Number(priority.value), definition: object(definition.value, 'The definition') });

  async function attempt() {
    if (!form.firstChild.reportValidity()) return;
    const notes = [];
    try {
      const tried = await post(`${at('try')}?page=1&page_size=100`, body(), { notes });
      fill(result, notes.map((text) => h('p', { class: 'notice' }, text)), outcome(tried));
    } catch (failure) {
      fill(result, h('p', { class: 'notice bad' }, failure.message));
    }
  }
  async function set(event) {
    event.preventDefault();
    fill(result);
    const notes = [];
    await view.act(async () => put(at(), body(), { notes }), () => [`The policy ${name.value} is set.`, ...notes].join('\n'));
  }
  vhostNames(view).then((names) => vhost.append(...names.map((v) => h('option', { value: v }, v))), (failure) => view.signal.aborted || view.say(failure.message, 'bad'));

  function columns(kind) {
    return [
      { title: 'Virtual host', sort: 'vhost', minor: true, show: (p) => p.vhost },
      { title: 'Name', sort: 'name', show: (p) => p.name },
      { title: 'Pattern', sort: 'pattern', show: (p) => h('code', null, p.pattern) },
      { title: 'Applies to', minor: true, show: (p) => p['apply-to'] },
      { title: 'Priority', sort: 'priority', number: true, show: (p) => p.priority },
      { title: 'Definition', show: (p) => [terms(p.definition), p.notes?.map((text) => h('div', null, h('small', null, text)))] },
      { title: 'Actions', show: (p) => view.may(kind === 'policies' ? 'policymaker' : 'administrator') && h('span', { class: 'buttons', data: { key: `${json(p)}` } }, button('Edit', () => view.edit(kind, p)), button('Delete', () => drop(kind, p))) },
    ];
  }
  async function drop(kind, p) {
    if (await confirm(`Delete the policy ${p.name}?`, 'Delete')) await view.act(() => remove(path(kind, p.vhost, p.name)), 'The policy is deleted.');
  }
}

// outcome shows which queues a policy would match, and what it would change there.
function outcome(tried) {
  const differences = (x) => {
    const is = x.effective_policy_definition, would = x.would_effective_policy_definition, value = (o, k) => (Object.hasOwn(o, k) ? json(o[k]) : 'nothing');
    return [...new Set([...Object.keys(is), ...Object.keys(would)])].sort().filter((k) => json(is[k]) !== json(would[k])).map((k) => h('li', null, h('code', null, k), `: ${value(is, k)} → ${value(would, k)}`));
  };
  return [
    h('p', { class: 'outcome' }, tried.total_count === 0 ? 'It would match no queue.' : `It would match ${count(tried.total_count)} queue${tried.total_count === 1 ? '' : 's'}; ${tried.items.filter((x) => x.changes).length} of the ${count(tried.item_count)} shown would change.`),
    tried.total_count > 0 && scrolled('What it would change', undefined, h('table', { id: 'tried' }, h('caption', null, 'What it would change'),
      h('thead', null, h('tr', null, ['Queue', 'Policies', 'It would', 'Changes'].map((t) => h('th', { scope: 'col' }, t)))),
      h('tbody', null, tried.items.map((x) => h('tr', null, h('td', null, link(place('queue', x.vhost, x.name), x.name)), h('td', null, [x.policy, x.operator_policy].filter(Boolean).join(' and ') || '–'),
        h('td', null, x.wins ? badge('apply', 'good') : badge(`not apply: ${x.would_policy} is before it`, 'warn')), h('td', null, x.changes ? h('ul', null, differences(x)) : 'nothing')))))),
  ];
}

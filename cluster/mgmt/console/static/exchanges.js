// Exchanges, their bindings, and messages that wait at delayed ones.

import { exchangePath, get, path, post, put, remove } from './client.js';
import { badge, button, fill, h, link, pairs, place } from './dom.js';
import { count, left, rate, rateOf, terms } from './format.js';
import { graph } from './graph.js';
import { vhostChoice, vhostNames } from './queues.js';
import { waiting } from './scheduled.js';
import { paged } from './table.js';
import { area, confirm, dialog, field, input, object, section, select } from './view.js';

const types = ['direct', 'fanout', 'topic', 'headers', 'x-delayed-message'];
const shown = (name) => (name === '' ? '(default)' : name);

export function exchanges(view, vhost) {
  const columns = [
    { title: 'Virtual host', sort: 'vhost', minor: true, show: (x) => x.vhost },
    { title: 'Name', sort: 'name', show: (x) => link(place('exchange', x.vhost, x.name), shown(x.name)) },
    { title: 'Type', sort: 'type', show: (x) => x.type },
    { title: 'Features', minor: true, show: (x) => [!x.durable && badge('not durable'), x.auto_delete && badge('auto-delete'), x.internal && badge('internal')] },
    { title: 'Waiting', sort: 'messages_delayed', number: true, show: (x) => (x.messages_delayed === undefined ? '–' : count(x.messages_delayed)) },
    { title: 'In', sort: 'message_stats.publish_in_details.rate', number: true, show: (x) => rate(rateOf(x.message_stats, 'publish_in') ?? 0) },
    { title: 'Out', sort: 'message_stats.publish_out_details.rate', number: true, show: (x) => rate(rateOf(x.message_stats, 'publish_out') ?? 0) },
    { title: 'Policy', sort: 'policy', minor: true, show: (x) => x.policy || '–' },
  ];
  view.show('Exchanges', paged(view, 'Exchanges', vhost ? path('exchanges', vhost) : path('exchanges'), columns, {
    key: (x) => `${x.vhost}\n${x.name}`, by: 'name', controls: [vhostChoice(view, vhost, 'exchanges'), button('Add an exchange', () => add(view, vhost), { class: 'primary' })],
  }));
}

async function add(view, vhost) {
  const vhosts = vhost ? [vhost] : await vhostNames(view);
  let to;
  const done = await dialog('Add an exchange', [
    field('Virtual host', select('vhost', vhosts)), field('Name', input('name', { required: true, maxlength: 255 })), field('Type', select('type', types)),
    field('Durable', select('durable', [['true', 'yes'], ['false', 'no']])), field('Arguments', area('arguments'), 'A JSON object, such as {"x-delayed-type": "topic"} of x-delayed-message'),
  ], 'Add', async (f) => {
    to = place('exchange', f.vhost.value, f.name.value);
    await put(path('exchanges', f.vhost.value, f.name.value), { type: f.type.value, durable: f.durable.value, arguments: object(f.arguments.value, 'Arguments') });
    return true;
  });
  if (done) location.hash = to;
}

export function exchange(view, vhost, name = '') {
  const at = exchangePath(vhost, name), own = name !== '' && !name.startsWith('amq.');
  const facts = h('div'), delayed = h('div');
  const from = paged(view, 'Bindings from it', exchangePath(vhost, name, 'bindings', 'source'), bindingColumns(view, true), { key: bindingKey, by: 'destination', named: false });
  const to = name !== '' && paged(view, 'Bindings to it', exchangePath(vhost, name, 'bindings', 'destination'), bindingColumns(view, false), { key: bindingKey, by: 'source', named: false });
  view.absent = `There is no exchange ${shown(name)} in the virtual host ${vhost}, or you may not see it.`;
  view.show(`Exchange ${shown(name)}`, h('p', { class: 'under' }, 'in the virtual host ', h('code', null, vhost)),
    h('div', { class: 'buttons' }, name !== '' && button('Bind', bind, { class: 'primary' }), button('Publish', publish), own && button('Delete', drop, { class: 'danger' })),
    section('State', facts), delayed, section('Graph', graph(view, vhost, name)), section('Bindings from it', from), to && section('Bindings to it', to));
  let waits = false;
  view.every(async () => {
    const x = await get(at, null, { signal: view.signal });
    fill(facts, pairs([
      ['Type', x.type], ['Durable', x.durable ? 'yes' : 'no'], ['Arguments', terms(x.arguments)], ['Policy', x.policy], ['Operator policy', x.operator_policy], ['In effect', terms(x.effective_policy_definition)],
      ['Published to it', x.message_stats ? `${count(x.message_stats.publish_in)}, ${rate(rateOf(x.message_stats, 'publish_in'))}` : ''], ['Copies for queues', x.message_stats ? `${count(x.message_stats.publish_out)}, ${rate(rateOf(x.message_stats, 'publish_out'))}` : ''],
      ['Waiting', x.messages_delayed === undefined ? '' : count(x.messages_delayed)], ['Next', x.next_delayed_at ? left(x.next_delayed_at) : ''], ['Last', x.last_delayed_at ? left(x.last_delayed_at) : ''],
      ['Fired', x.delayed_fired_total === undefined ? '' : count(x.delayed_fired_total)], ['Cancelled', x.delayed_cancelled_total === undefined ? '' : count(x.delayed_cancelled_total)], ['Without a route when due', x.delayed_unroutable_total ? count(x.delayed_unroutable_total) : ''],
    ]));
    if (x.messages_delayed !== undefined && !waits) {
      waits = true;
      waiting(view, delayed, `${at}/delayed`);
    }
  });

  function bind() {
    dialog(`Bind ${name}`, [
      field('To', select('kind', [['q', 'a queue'], ['e', 'an exchange']])), field('Name', input('name', { required: true })), field('Routing key', input('key')), field('Arguments', area('arguments'), 'A JSON object'),
    ], 'Bind', async (f) => {
      await post(path('bindings', vhost, 'e', name, f.kind.value, f.name.value), { routing_key: f.key.value, arguments: object(f.arguments.value, 'Arguments') });
      view.refresh();
      return true;
    });
  }
  function publish() {
    dialog(`Publish to ${shown(name)}`, [
      field('Routing key', input('key')), field('Payload', area('payload')), field('Headers', area('headers', { rows: 2 }), 'A JSON object, such as {"x-delay": 60000} for a delayed exchange'),
    ], 'Publish', async (f) => {
      const answer = await post(`${at}/publish`, { properties: { delivery_mode: 2, headers: object(f.headers.value, 'Headers') }, routing_key: f.key.value, payload: f.payload.value, payload_encoding: 'string' });
      view.say(answer.routed ? 'The message is confirmed.' : 'No queue has taken the message: it had no route.', answer.routed ? 'good' : 'bad');
      view.refresh();
      return true;
    });
  }
  async function drop() {
    if (await confirm(`Delete the exchange ${name}?`, 'Delete', 'Its bindings are deleted with it.') && await view.act(() => remove(at), 'The exchange is deleted.')) location.hash = '#/exchanges';
  }
}

// queueBindings is the part of a queue.
export function queueBindings(view, body, at, { vhost, name }) {
  const to = paged(view, 'Bindings to it', `${at}/bindings`, bindingColumns(view, false), { key: bindingKey, by: 'source', named: false });
  const bind = () => dialog(`Bind ${name}`, [
    field('From the exchange', input('name', { required: true })), field('Routing key', input('key')), field('Arguments', area('arguments'), 'A JSON object'),
  ], 'Bind', async (f) => {
    await post(path('bindings', vhost, 'e', f.name.value, 'q', name), { routing_key: f.key.value, arguments: object(f.arguments.value, 'Arguments') });
    view.refresh();
    return true;
  });
  fill(body, h('div', { class: 'buttons' }, button('Bind', bind, { class: 'primary' })), section('Bindings to it', to));
}

const bindingKey = (b) => JSON.stringify([b.source, b.destination_type, b.destination, b.properties_key]);

// bindingColumns are those of bindings, with the other end of each.
function bindingColumns(view, from) {
  const end = (b) => {
    if (!from) return link(place('exchange', b.vhost, b.source), shown(b.source));
    return b.destination_type === 'queue' ? ['queue ', link(place('queue', b.vhost, b.destination), b.destination)] : ['exchange ', link(place('exchange', b.vhost, b.destination), b.destination)];
  };
  const drop = async (b) => {
    if (await confirm('Delete the binding?', 'Delete', `${b.source} → ${b.destination} with the routing key "${b.routing_key}"`)) {
      await view.act(async () => remove(path('bindings', b.vhost, 'e', b.source, b.destination_type === 'queue' ? 'q' : 'e', b.destination, b.properties_key)), 'The binding is deleted.');
    }
  };
  return [
    { title: from ? 'To' : 'From', sort: from ? 'destination' : 'source', show: end },
    { title: 'Routing key', sort: 'routing_key', show: (b) => h('code', null, b.routing_key) },
    { title: 'Arguments', minor: true, show: (b) => terms(b.arguments) },
    { title: 'Actions', show: (b) => b.source !== '' && button('Delete', () => drop(b)) },
  ];
}

// Takes the unmodified SDK of Azure Service Bus through the steps that it is given, at queues of which it is given the
// prefix: node servicebus.js CONNECTION PREFIX STEP… It says "ok" once all are done. A line "do WHAT" asks for something to be
// done to the cluster: it reads a line once that is done.
'use strict';
const assert = require('assert');
const readline = require('readline');
const { ServiceBusClient, ServiceBusAdministrationClient } = require('@azure/service-bus');

const [connection, prefix, ...todo] = process.argv.slice(2);

const message = (id, more) => ({ messageId: id, body: 'body of ' + id, applicationProperties: { n: 7, text: 't' }, ...more });

// receive receives messages with these ids, in order.
async function receive(from, ...ids) {
  const all = [];
  while (all.length < ids.length) all.push(...await from.receiveMessages(ids.length - all.length, { maxWaitTimeInMs: 20000 }));
  assert.deepStrictEqual(all.map((m) => m.messageId), ids);
  return all;
}

async function none(from) {
  assert.deepStrictEqual(await from.receiveMessages(1, { maxWaitTimeInMs: 300 }), []);
}

// fails wants an error with a code.
async function fails(what, code) {
  await assert.rejects(what, (e) => {
    assert.strictEqual(e.code, code, e);
    return true;
  });
}

// ask has something done to the cluster.
async function ask(what) {
  console.log('do ' + what);
  const lines = readline.createInterface({ input: process.stdin });
  await new Promise((resolve) => lines.once('line', resolve));
  lines.close();
}

// names are the ids of n messages from a number on.
const names = (prefix, from, n) => Array.from({ length: n }, (_, i) => prefix + String(from + i).padStart(2, '0'));

// rest receives and completes messages with these ids in whatever order, and then nothing. counts are how often those were
// delivered before that were.
async function rest(from, counts, ...ids) {
  const got = [];
  while (got.length < ids.length) {
    for (const m of await from.receiveMessages(ids.length - got.length, { maxWaitTimeInMs: 20000 })) {
      got.push(m.messageId);
      assert.strictEqual(m.deliveryCount, counts[m.messageId] || 0, m.messageId);
      await from.completeMessage(m);
    }
  }
  assert.deepStrictEqual(got.sort(), ids.sort());
  assert.deepStrictEqual(await from.receiveMessages(1, { maxWaitTimeInMs: 1000 }), []);
}

const steps = {
  async settles(client) {
    const q = prefix + 'settles';
    const s = client.createSender(q);
    const from = client.createReceiver(q);
    await s.sendMessages([message('a', { timeToLive: 3600000, subject: 'subject', contentType: 'text/plain' }), message('b'), { body: 'none' }]);
    const [a, b] = await receive(from, 'a', 'b');
    assert.strictEqual(a.subject, 'subject');
    assert(a.timeToLive >= 3600000 && a.timeToLive < 3660000, a.timeToLive); // the SDK counts it from the client's clock
    assert.strictEqual(a.expiresAtUtc.getTime(), a.enqueuedTimeUtc.getTime() + 3600000);
    assert.strictEqual(a.applicationProperties.n, 7);
    assert.strictEqual(a.deliveryCount, 0);
    await from.completeMessage(a);
    await from.abandonMessage(b, { p: 'v' });
    const [again] = await receive(from, 'b');
    assert.strictEqual(again.deliveryCount, 1);
    assert.strictEqual(again.applicationProperties.p, 'v');
    await from.completeMessage(again);
    const [unnamed] = await from.receiveMessages(1);
    assert.strictEqual(unnamed.messageId.length, 32);
    await from.completeMessage(unnamed);
    await none(from);
  },

  async deadLetters(client) {
    const q = prefix + 'deadLetters';
    const s = client.createSender(q);
    const from = client.createReceiver(q);
    await s.sendMessages(message('a'));
    const [a] = await receive(from, 'a');
    await from.deadLetterMessage(a, { deadLetterReason: 'why', deadLetterErrorDescription: 'because', p: 1 });
    const dead = client.createReceiver(q, { subQueueType: 'deadLetter' });
    const [letter] = await receive(dead, 'a');
    assert.strictEqual(letter.deadLetterReason, 'why');
    assert.strictEqual(letter.deadLetterErrorDescription, 'because');
    assert.strictEqual(letter.applicationProperties.p, 1);
    await dead.completeMessage(letter);
  },

  async batches(client) {
    const q = prefix + 'batches';
    const s = client.createSender(q);
    const from = client.createReceiver(q, { receiveMode: 'receiveAndDelete' });
    const batch = await s.createMessageBatch();
    const ids = [];
    for (let i = 0; i < 50; i++) {
      ids.push('m' + i);
      assert(batch.tryAddMessage(message('m' + i)));
    }
    await s.sendMessages(batch);
    await receive(from, ...ids);
    await none(from);
  },

  async subscribes(client) {
    const q = prefix + 'subscribes';
    const s = client.createSender(q);
    const from = client.createReceiver(q);
    const got = [];
    await new Promise((resolve, reject) => {
      from.subscribe({
        processMessage: async (m) => { if (got.push(m.messageId) === 20) resolve(); },
        processError: async (e) => reject(e.error),
      }, { maxConcurrentCalls: 5 });
      (async () => { for (let i = 0; i < 20; i++) await s.sendMessages(message('m' + i)); })().catch(reject);
    });
    assert.strictEqual(new Set(got).size, 20);
  },

  async refusals(client) {
    await fails(client.createSender(prefix + 'nowhere').sendMessages(message('a')), 'MessagingEntityNotFound');
    await fails(client.createSender(prefix + 'refusals').sendMessages({ body: Buffer.alloc(2 << 20) }), 'MessageSizeExceeded');
    await client.createSender(prefix + 'refusals').sendMessages(message('small'));
    await receive(client.createReceiver(prefix + 'refusals', { receiveMode: 'receiveAndDelete' }), 'small');
  },

  async manages(client) {
    const q = prefix + 'manages';
    const s = client.createSender(q);
    const from = client.createReceiver(q);
    await s.sendMessages([message('a'), message('b')]);
    assert.deepStrictEqual((await from.peekMessages(5)).map((m) => m.messageId), ['a', 'b']);
    const [a, b] = await receive(from, 'a', 'b');
    const until = a.lockedUntilUtc;
    assert((await from.renewMessageLock(a)) > until);
    await from.completeMessage(a);
    await from.deferMessage(b);
    await none(from);
    const [deferred] = await from.receiveDeferredMessages(b.sequenceNumber);
    assert.strictEqual(deferred.state, 'deferred');
    await from.completeMessage(deferred);
    await fails(from.receiveDeferredMessages(b.sequenceNumber), 'MessageNotFound');
    const soon = new Date(Date.now() + 2000);
    const numbers = await s.scheduleMessages([message('c'), message('d')], soon);
    await s.cancelScheduledMessages(numbers[0]);
    const [d] = await receive(from, 'd');
    assert(Date.now() >= soon.getTime());
    await from.completeMessage(d);
  },

  async sessions(client) {
    const q = prefix + 'sessions';
    const s = client.createSender(q);
    await s.sendMessages([message('a', { sessionId: 'x' }), message('b', { sessionId: 'y' })]);
    const x = await client.acceptSession(q, 'x');
    await fails(client.acceptSession(q, 'x'), 'SessionCannotBeLocked');
    const next = await client.acceptNextSession(q);
    assert.strictEqual(next.sessionId, 'y');
    await x.setSessionState({ half: 'done' });
    assert.deepStrictEqual(await x.getSessionState(), { half: 'done' });
    const until = x.sessionLockedUntilUtc;
    assert((await x.renewSessionLock()) > until);
    await x.completeMessage((await receive(x, 'a'))[0]);
    await next.completeMessage((await receive(next, 'b'))[0]);
    await x.close();
    const again = await client.acceptSession(q, 'x');
    assert.deepStrictEqual(await again.getSessionState(), { half: 'done' });
    await again.setSessionState(null);
    assert.strictEqual(await again.getSessionState(), null);
    await again.close();
    await next.close();
  },

  async defers(client) {
    const q = prefix + 'defers';
    const s = client.createSender(q);
    const from = client.createReceiver(q);
    await s.sendMessages(names('m', 0, 3).map((id) => message(id)));
    const numbers = [];
    for (const m of await receive(from, ...names('m', 0, 3))) {
      numbers.push(m.sequenceNumber);
      await from.deferMessage(m, { deferred: true });
    }
    const all = await from.receiveDeferredMessages(numbers);
    assert.deepStrictEqual(all.map((m) => m.messageId), names('m', 0, 3));
    assert.strictEqual(all[0].applicationProperties.deferred, true);
    await from.completeMessage(all[0]);
    await from.abandonMessage(all[1]);
    await from.deadLetterMessage(all[2], { deadLetterReason: 'late' });
    await none(from);
    const [again] = await from.receiveDeferredMessages(numbers[1]);
    assert.strictEqual(again.deliveryCount, 1);
    await from.completeMessage(again);
    await fails(from.receiveDeferredMessages(numbers[0]), 'MessageNotFound');
    const [letter] = await receive(client.createReceiver(q, { subQueueType: 'deadLetter' }), 'm02');
    assert.strictEqual(letter.deadLetterReason, 'late');
  },

  // Settles while the leader of the queue is gone, and then what is left once the program's own node was gone.
  async killedSettles(client) {
    const q = prefix + 'killedSettles';
    const s = client.createSender(q);
    const from = client.createReceiver(q);
    await s.sendMessages(names('m', 0, 12).map((id) => message(id)));
    const got = await receive(from, ...names('m', 0, 8));
    await ask('kill ' + q);
    await from.completeMessage(got[0]);
    await from.abandonMessage(got[1]);
    await from.deferMessage(got[2]);
    await from.deadLetterMessage(got[3]);
    for (const id of names('m', 12, 4)) await s.sendMessages(message(id));
    await ask('restart');
    await ask('bounce');
    for (const m of got.slice(4)) await from.completeMessage(m);
    await rest(from, { m01: 1 }, 'm01', ...names('m', 8, 8));
    await rest(client.createReceiver(q, { subQueueType: 'deadLetter' }), {}, 'm03');
    const [deferred] = await from.receiveDeferredMessages(got[2].sequenceNumber);
    await from.completeMessage(deferred);
    assert.deepStrictEqual(await from.peekMessages(10, { fromSequenceNumber: got[0].sequenceNumber }), []);
  },

  async killedSessions(client) {
    const q = prefix + 'killedSessions';
    const s = client.createSender(q);
    await s.sendMessages(names('x', 0, 6).map((id) => message(id, { sessionId: 'x' })));
    let x = await client.acceptSession(q, 'x');
    const [first] = await receive(x, 'x00');
    await ask('kill ' + q);
    await x.completeMessage(first);
    await x.setSessionState({ done: 1 });
    await fails(client.acceptSession(q, 'x'), 'SessionCannotBeLocked');
    await s.sendMessages(names('x', 6, 2).map((id) => message(id, { sessionId: 'x' })));
    await ask('restart');
    assert.deepStrictEqual(await x.getSessionState(), { done: 1 });
    await ask('bounce');
    for (let end = Date.now() + 40000; ;) { // until nobody holds it
      try {
        x = await client.acceptSession(q, 'x');
        break;
      } catch (e) {
        if (Date.now() > end) throw e;
      }
    }
    assert.deepStrictEqual(await x.getSessionState(), { done: 1 });
    await rest(x, {}, ...names('x', 1, 7));
    await x.close();
  },

  async killedSchedules(client) {
    const q = prefix + 'killedSchedules';
    const s = client.createSender(q);
    const from = client.createReceiver(q);
    for (const [round, disturb] of [['a', () => ask('kill ' + q)], ['b', () => ask('bounce')]]) {
      const soon = new Date(Date.now() + 3000);
      await s.scheduleMessages(names(round, 0, 6).map((id) => message(id)), soon);
      const numbers = await s.scheduleMessages(names(round, 6, 3).map((id) => message(id)), new Date(Date.now() + 3600000));
      await disturb();
      await s.cancelScheduledMessages(numbers);
      await fails(s.cancelScheduledMessages(numbers[0]), 'MessageNotFound');
      await rest(from, {}, ...names(round, 0, 6));
      assert(Date.now() >= soon.getTime());
      if (round === 'a') await ask('restart');
    }
  },

  // Changes the rules of a subscription by messages, and receives what they make.
  async rules(client) {
    const admin = new ServiceBusAdministrationClient(process.env.MANAGEMENT.split(' ')[0]);
    const topic = prefix + 'ruled';
    await admin.createTopic(topic);
    await admin.createSubscription(topic, 'S');
    const m = client.createRuleManager(topic, 'S');
    const list = async () => {
      const all = [];
      for await (const r of m.listRules()) all.push(r);
      return all;
    };
    assert.deepStrictEqual((await list()).map((r) => r.name), ['$Default']);
    await m.createRule('sql', { sqlExpression: 'n = 5' }, { sqlExpression: "SET m = 'it'" });
    await m.createRule('like', { subject: 'su', applicationProperties: { n: 1, t: 'te', b: true } });
    await m.deleteRule('$Default');
    const [like, sql] = await list();
    assert.deepStrictEqual([like.name, like.filter.subject, like.filter.applicationProperties], ['like', 'su', { n: 1, t: 'te', b: true }]);
    assert.deepStrictEqual([sql.filter.sqlExpression, sql.action.sqlExpression], ['n = 5', "SET m = 'it'"]);
    await fails(m.createRule('sql', { sqlExpression: 'n = 6' }), 'MessagingEntityAlreadyExists');
    await assert.rejects(m.createRule('wrong', { sqlExpression: 'n = = 5' }), /Filter/);
    await assert.rejects(m.deleteRule('nothing'), /could not be found/);
    const s = client.createSender(topic);
    const from = client.createReceiver(topic, 'S', { receiveMode: 'receiveAndDelete' });
    const send = (id, subject, applicationProperties) => s.sendMessages({ messageId: id, body: 'body of ' + id, subject, applicationProperties });
    await send('a', 'x', { n: 5 });
    await send('b', 'x', { n: 4 });
    await send('c', 'su', { n: 1, t: 'te', b: true });
    const [a, c] = await receive(from, 'a', 'c');
    assert.deepStrictEqual(a.applicationProperties, { n: 5, m: 'it', RuleName: 'sql' });
    assert.deepStrictEqual([String(a.enqueuedSequenceNumber), String(c.enqueuedSequenceNumber)], ['1', '3']);
    await admin.deleteTopic(topic);
  },

  // Creates entities at one node, and finds them at another.
  async administers() {
    const [a, b] = process.env.MANAGEMENT.split(' ').map((c) => new ServiceBusAdministrationClient(c));
    const q = prefix + 'administered';
    assert.strictEqual((await a.createQueue(q, { maxDeliveryCount: 3, lockDuration: 'PT30S', userMetadata: '<it>' })).maxDeliveryCount, 3);
    await fails(b.createQueue(q), 'MessageEntityAlreadyExistsError');
    const found = await b.getQueue(q);
    assert.deepStrictEqual([found.name, found.lockDuration, found.userMetadata], [q, 'PT30S', '<it>']);
    await b.updateQueue({ ...found, maxDeliveryCount: 4 });
    assert.strictEqual((await a.getQueue(q)).maxDeliveryCount, 4);
    assert.strictEqual((await a.getQueueRuntimeProperties(q)).totalMessageCount, 0);
    assert(await b.queueExists(q));
    const topic = prefix + 'administered-topic';
    await a.createTopic(topic);
    await b.createSubscription(topic, 'S', { requiresSession: true });
    assert.strictEqual((await a.getSubscription(topic, 'S')).requiresSession, true);
    await a.createRule(topic, 'S', 'sql', { sqlExpression: 'n = @n', sqlParameters: { '@n': 3 } }, { sqlExpression: 'SET m = 1' });
    await b.createRule(topic, 'S', 'like', { subject: 'su', applicationProperties: { n: 1, t: 'te', b: true } });
    const rules = {};
    for await (const r of b.listRules(topic, 'S')) rules[r.name] = r;
    assert.deepStrictEqual(Object.keys(rules).sort(), ['$Default', 'like', 'sql']);
    assert.strictEqual(rules.sql.filter.sqlExpression, 'n = @n');
    assert.strictEqual(rules.sql.action.sqlExpression, 'SET m = 1');
    assert.strictEqual(rules.like.filter.subject, 'su');
    assert.deepStrictEqual(rules.like.filter.applicationProperties, { n: 1, t: 'te', b: true });
    await b.deleteRule(topic, 'S', 'sql');
    await fails(a.getRule(topic, 'S', 'sql'), 'MessageEntityNotFoundError');
    assert.strictEqual((await a.getTopicRuntimeProperties(topic)).subscriptionCount, 1);
    const listed = [];
    for await (const x of a.listSubscriptions(topic)) listed.push(x.subscriptionName);
    assert.deepStrictEqual(listed, ['S']);
    await b.deleteSubscription(topic, 'S');
    assert(!await a.subscriptionExists(topic, 'S'));
    await a.deleteTopic(topic);
    await b.deleteQueue(q);
    assert(!await a.queueExists(q));
  },
};

async function main() {
  for (const name of todo) {
    const client = new ServiceBusClient(connection, { retryOptions: { maxRetries: 1, retryDelayInMs: 100, timeoutInMs: 20000 } });
    await steps[name](client);
    await client.close();
    console.log('done', name);
  }
  console.log('ok');
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});

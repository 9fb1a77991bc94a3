// Takes the unmodified SDK of Azure Service Bus through the steps that it is given, at queues of which it is given the
// prefix: node servicebus.js CONNECTION PREFIX STEP… It says "ok" once all are done.
'use strict';
const assert = require('assert');
const { ServiceBusClient } = require('@azure/service-bus');

const [connection, prefix, ...names] = process.argv.slice(2);

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

const steps = {
  async settles(client) {
    const q = prefix + 'js-settles';
    const s = client.createSender(q);
    const from = client.createReceiver(q);
    await s.sendMessages([message('a', { timeToLive: 3600000, subject: 'subject', contentType: 'text/plain' }), message('b'), { body: 'none' }]);
    const [a, b] = await receive(from, 'a', 'b');
    assert.strictEqual(a.subject, 'subject');
    assert.strictEqual(a.timeToLive, 3600000);
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
    const q = prefix + 'js-dead';
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
    const q = prefix + 'js-batches';
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
    const q = prefix + 'js-subscribes';
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
    await fails(client.createSender(prefix + 'js-refusals').sendMessages({ body: Buffer.alloc(2 << 20) }), 'MessageSizeExceeded');
  },

  async manages(client) {
    const q = prefix + 'js-manages';
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
    const q = prefix + 'js-sessions';
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
    await next.close();
  },
};

async function main() {
  for (const name of names) {
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

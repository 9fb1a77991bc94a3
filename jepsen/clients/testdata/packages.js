// The client package for JavaScript: takes the steps that packages_test.go describes.
'use strict'
const amqp = require('amqplib')
const assert = require('assert')
const { EventEmitter, once } = require('events')
const readline = require('readline')
const { setTimeout: passed } = require('timers/promises')
const { Client, RefusedError, LockLostError, UnknownOutcomeError, ClosedError, SessionEndedError } = require(process.env.QUORATE_CLIENT)

const LOCK = 12000 // milliseconds that the lock lasts that is held while the leader is killed
const HOUR = 3600000
const [addresses, prefix] = [process.argv[2].split(','), process.argv[3]]
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()
let connection, channel, client

process.on('unhandledRejection', (e) => { console.error(e); process.exit(1) })

async function connect (address) {
  const [hostname, port] = address.split(':')
  connection = await amqp.connect({ protocol: 'amqp', hostname, port: Number(port), username: 'guest', password: 'guest' })
  channel = await connection.createConfirmChannel()
  await channel.prefetch(10)
  client = await Client.on(channel)
}

async function ask (what) {
  console.log(what)
  await lines.next()
}

function refused (promise, verb, code, text) {
  return assert.rejects(promise, (e) => {
    assert(e instanceof RefusedError && e.verb === verb && e.code === code && e.text.includes(text), e)
    return true
  })
}

const publish = (queue, body, headers) => new Promise((resolve, reject) => {
  channel.publish('', queue, Buffer.from(body), { headers, mandatory: true }, (e) => e ? reject(e) : resolve())
})

async function queue (name, args, ...bodies) {
  const q = prefix + '.' + name
  await channel.assertQueue(q, { durable: true })
  for (const body of bodies) await publish(q, body)
  const items = []
  let wake = () => {}
  await channel.consume(q, (m) => { items.push(m); wake() }, { consumerTag: q, arguments: args })
  return [q, async (body) => {
    while (!items.length) await new Promise((resolve) => { wake = resolve })
    const m = items.shift()
    assert.strictEqual(String(m.content), body)
    return client.message(m)
  }]
}

async function settled () {
  const [, next] = await queue('settled', {}, 'a', 'b', 'c')
  const [a, b] = [await next('a'), await next('b')]
  await a.ack()
  await assert.rejects(a.ack(), LockLostError)
  await assert.rejects(a.hold(), LockLostError)
  await assert.rejects(b.hold(), RangeError)
  await b.requeue()
  const c = await next('c')
  await (await next('b')).reject()
  await c.deadLetter('wrong', 'without an amount')
}

async function refusals () {
  const [q, next] = await queue('refused', { 'x-lock-duration': 30000 }, 'a')
  const a = await next('a')
  await refused(a.renew(1), 'lock.renew', 406, 'x-lock-duration')
  await refused(a.defer(''), 'message.defer', 406, 'requires x-deferral-token')
  await refused(a.retry({}), 'message.retry', 406, 'requires either x-delay')
  await refused(client.cancel({ queue: q }, 'nothing'), 'schedule.cancel', 404, 'nothing')
  await refused(client.pause('nowhere'), 'queue.pause', 404, 'nowhere')
  await refused(client.pause(q, { reason: 'x'.repeat(256) }), 'queue.pause', 406, 'x-reason')
  await refused(client.receiveDeferred(q, q), 'message.receive-deferred', 406, 'x-deferral-tokens')
  await assert.rejects(client.messageWithToken('no token').ack(), LockLostError)
  await assert.rejects(client.group(q, q, 'g').state(), RefusedError)
  await assert.rejects(client.cancel({ queue: q, exchange: 'x' }, 'nothing'), TypeError)
  await a.ack()
}

async function retried () {
  const [, next] = await queue('retried', {}, 'a')
  await (await next('a')).retry({ delay: 50 })
  await (await next('a')).retry({ at: new Date(), failed: false })
  await (await next('a')).ack()
}

async function deferred () {
  const [q, next] = await queue('deferred', {}, 'a', 'b')
  const [a, b] = [await next('a'), await next('b')]
  await a.defer('token')
  await refused(b.defer('token'), 'message.defer', 405, 'RESOURCE_LOCKED')
  await refused(client.receiveDeferred(q, q, 'another'), 'message.receive-deferred', 404, 'another')
  await client.receiveDeferred(q, q, 'token')
  await (await next('a')).ack()
  await b.defer('token', { delay: 50 })
  await (await next('b')).ack()
}

async function scheduled () {
  const [q, next] = await queue('scheduled', {})
  const schedule = (body, how) => client.schedule('', q, Buffer.from(body), how)
  for (const id of ['a', 'b', 'c']) await schedule(id, { delay: HOUR, id })
  await refused(schedule('a', { delay: HOUR, id: 'a', conflict: 'reject' }), 'schedule', 0, 'nacked')
  await client.cancel({ queue: q }, 'a')
  await refused(client.cancel({ queue: q }, 'a'), 'schedule.cancel', 404, "'a'")
  await client.reschedule({ queue: q }, 'b', { delay: 50 })
  await (await next('b')).ack()
  await client.fire({ queue: q }, 'c')
  await (await next('c')).ack()
  await schedule('d', { at: new Date(Date.now() + 50) })
  await (await next('d')).ack()
  const exchange = prefix + '.delayed'
  await channel.assertExchange(exchange, 'fanout', { arguments: { 'x-delayed-exchange': true } })
  await channel.bindQueue(q, exchange, '')
  channel.publish(exchange, '', Buffer.from('e'), { headers: { 'x-delay': HOUR, 'x-schedule-id': 'e' } })
  await client.cancel({ exchange }, 'e')
  await refused(client.cancel({ exchange }, 'e'), 'schedule.cancel', 404, "'e'")
  await refused(client.schedule('', 'nowhere', Buffer.from(''), { delay: HOUR }), 'schedule', 312, 'NO_ROUTE')
}

async function paused () {
  const [q, next] = await queue('paused', {})
  await client.pause(q, { reason: 'the bank is down' })
  await publish(q, 'a')
  await refused(client.receiveDeferred(q, q, 'token'), 'message.receive-deferred', 405, 'paused')
  await client.resume(q)
  await (await next('a')).ack()
  const began = performance.now()
  await client.pause(q, { duration: 300 })
  await publish(q, 'b')
  await (await next('b')).ack()
  assert(performance.now() - began >= 300)
}

async function sessions () {
  const q = prefix + '.sessions'
  await channel.assertQueue(q, { durable: true, arguments: { 'x-message-groups': true } })
  for (const [group, body] of [['x', '1'], ['y', '1'], ['x', '2']]) await publish(q, body, { 'x-group-id': group })
  const args = { 'x-lock-duration': 30000 }
  const receive = async (session, body) => {
    const message = await session.receive(30000)
    assert.strictEqual(String(message.content), body)
    return message
  }
  let session = await client.accept(q, { arguments: args })
  assert.strictEqual(session.id, 'x')
  const hold = await session.hold()
  await session.setState(Buffer.from('half done'))
  await (await receive(session, '1')).ack()
  await receive(session, '2') // it returns
  assert(hold.active)
  await session.close()
  assert(!hold.active && !hold.signal.aborted)
  session = await client.accept(q, { id: 'x', arguments: args })
  assert.strictEqual(String(await session.state()), 'half done')
  assert(await session.renew() > 20000)
  await (await receive(session, '2')).ack()
  await session.close()
  await publish(q, '1', { 'x-group-id': 'z' })
  session = await client.accept(q)
  assert.strictEqual(session.id, 'y')
  for await (const message of session) await message.ack() // until it is given z
  await session.close()
  session = await client.accept(q, { id: 'z' })
  await (await receive(session, '1')).ack()
  await session.close()
  await publish(q, '1', { 'x-group-id': 7 })
  const messages = new EventEmitter()
  const first = once(messages, 'message')
  await channel.consume(q, (m) => messages.emit('message', client.message(m)), { consumerTag: q, arguments: args })
  await first
  const group = client.group(q, q, '7')
  await group.hold()
  const again = once(messages, 'message')
  await group.release()
  await (await again)[0].ack()
  await assert.rejects(group.renew(), LockLostError)
  await channel.cancel(q)
  await assert.rejects(client.accept(q, { id: 'z', timeout: 100 }), SessionEndedError)
}

async function lost () {
  const [, next] = await queue('lost', { 'x-lock-duration': 3000, 'x-delivery-info': true }, 'a', 'b', 'c')
  const [a, b, c] = [await next('a'), await next('b'), await next('c')]
  const holdC = await c.hold(12 * HOUR)
  await client.messageWithToken(c.delivery.properties.headers['x-lock-token']).ack()
  await assert.rejects(c.ack(), LockLostError)
  assert(holdC.signal.reason instanceof LockLostError) // long before a renewal
  const [holdA, holdB] = [await a.hold(), await b.hold(30000)]
  const elsewhere = await Client.on(await connection.createConfirmChannel())
  await elsewhere.messageWithToken(a.delivery.properties.headers['x-lock-token']).ack()
  await once(holdA.signal, 'abort')
  assert(holdA.signal.reason instanceof LockLostError, holdA.signal.reason)
  await assert.rejects(a.ack(), LockLostError)
  assert(holdB.active)
  await b.ack()
  assert(!holdB.active && !holdB.signal.aborted)
}

async function closed () {
  const [, next] = await queue('closed', { 'x-lock-duration': 12 * HOUR }, 'a')
  const a = await next('a')
  const hold = await a.hold()
  await assert.rejects(channel.checkQueue('nowhere'))
  if (!hold.signal.aborted) await once(hold.signal, 'abort')
  assert(hold.signal.reason instanceof ClosedError, hold.signal.reason)
  await assert.rejects(a.ack(), ClosedError)
  await connection.close()
}

async function stalled () {
  const [q, next] = await queue('stalled', { 'x-lock-duration': 3000 }, 'a')
  const hold = await (await next('a')).hold()
  await ask('stall')
  client.timeout = 200
  await assert.rejects(client.resume(q), UnknownOutcomeError)
  await assert.rejects(client.schedule('', q, Buffer.from(''), { delay: HOUR }), UnknownOutcomeError)
  if (!hold.signal.aborted) await once(hold.signal, 'abort')
  assert(hold.signal.reason instanceof LockLostError, hold.signal.reason)
}

async function held () {
  const [q, next] = await queue('held', { 'x-lock-duration': LOCK }, 'a')
  await ask('lead ' + q)
  const message = await next('a')
  const began = performance.now()
  const hold = await message.hold()
  await ask('kill')
  await passed(began + LOCK + 1000 - performance.now())
  hold.signal.throwIfAborted()
  await message.ack()
}

async function main () {
  await connect(addresses[0])
  for (const [name, step] of Object.entries({ settled, refused: refusals, retried, deferred, scheduled, paused, sessions, lost, closed })) {
    await step()
    console.log('ok ' + name)
  }
  await connect(process.env.QUORATE_SLOW)
  await stalled()
  console.log('ok stalled')
  await connect(addresses[0])
  await held()
  console.log('ok held')
  process.exit()
}
main()

// The steps of the client test with amqplib.
'use strict'
const amqp = require('amqplib')
const readline = require('readline')

const [addresses, prefix] = [process.argv[2].split(','), process.argv[3]]
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()

function fail (...what) {
  console.error('check failed:', ...what)
  process.exit(1)
}
process.on('unhandledRejection', (e) => fail(e))

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const done = (step) => console.log('ok ' + step)
const name = (suffix) => prefix + '.' + suffix
const check = (holds, ...what) => holds || fail(...what)
const ask = (what) => { console.log(what); return lines.next() }

async function connect (address, heartbeat = 60) {
  const [hostname, port] = address.split(':')
  const connection = await amqp.connect({ protocol: 'amqp', hostname, port: Number(port), username: 'guest', password: 'guest', heartbeat })
  connection.lost = new Promise((resolve) => connection.once('close', resolve))
  connection.on('error', () => {})
  return connection
}

async function reconnect () {
  for (let attempt = 0; attempt < 300; attempt++) {
    try {
      return await connect(addresses[attempt % addresses.length])
    } catch (e) {
      await sleep(100)
    }
  }
  fail('no node lets us in')
}

async function publish (channel, exchange, key, body) {
  channel.publish(exchange, key, Buffer.from(body), { persistent: true, mandatory: true })
  await channel.waitForConfirms()
}

// Inbox keeps what a consumer gets; null: the consumer is cancelled.
class Inbox {
  messages = []
  wake = () => {}

  static async open (channel, queue) {
    const inbox = new Inbox()
    inbox.channel = channel
    inbox.tag = (await channel.consume(queue, (m) => { inbox.messages.push(m); inbox.wake() })).consumerTag
    return inbox
  }

  async count (n) {
    const late = setTimeout(() => fail('nothing came'), 30000)
    while (this.messages.length < n) await new Promise((resolve) => { this.wake = resolve })
    clearTimeout(late)
  }

  async receive () {
    await this.count(1)
    return this.messages.shift()
  }

  close () { return this.channel.cancel(this.tag) }
}

async function main () {
  let connection = await connect(addresses[2])
  let channel = await connection.createConfirmChannel()
  channel.on('error', () => {})
  await channel.assertExchange(name('x'), 'direct', { durable: true })
  await channel.assertQueue(name('q'), { durable: true, arguments: { 'x-queue-type': 'quorum' } })
  await channel.bindQueue(name('q'), name('x'), 'k')
  done('declare')

  for (let i = 0; i < 100; i++) {
    channel.publish(name('x'), 'k', Buffer.from(String(i)), { persistent: true, mandatory: true })
  }
  await channel.waitForConfirms()
  done('confirms')

  await channel.prefetch(10)
  let inbox = await Inbox.open(channel, name('q'))
  for (let i = 0; i < 100; i += 10) {
    await inbox.count(10)
    await sleep(50)
    check(inbox.messages.length === 10 && inbox.messages.every((m, n) => Number(m.content) === i + n), i)
    const last = inbox.messages[9]
    inbox.messages = []
    channel.ack(last, true)
  }
  await inbox.close()
  done('prefetch')

  await publish(channel, name('x'), 'k', 'again')
  inbox = await Inbox.open(channel, name('q'))
  let m = await inbox.receive()
  check(!m.fields.redelivered && String(m.content) === 'again', m)
  channel.nack(m, false, true)
  m = await inbox.receive()
  check(m.fields.redelivered && String(m.content) === 'again', m)
  channel.ack(m)
  await inbox.close()
  done('requeue')

  await channel.assertQueue(name('dead'), { durable: true })
  await channel.assertQueue(name('ttl'), {
    durable: true, messageTtl: 200, deadLetterExchange: '', deadLetterRoutingKey: name('dead')
  })
  await publish(channel, '', name('ttl'), 'mortal')
  inbox = await Inbox.open(channel, name('dead'))
  m = await inbox.receive()
  const death = m.properties.headers['x-death'][0]
  check(String(m.content) === 'mortal' && death.reason === 'expired' && death.queue === name('ttl'), death)
  channel.ack(m)
  await inbox.close()
  done('expiry')

  await channel.assertQueue(name('gone'), { durable: true })
  inbox = await Inbox.open(channel, name('gone'))
  await (await connection.createChannel()).deleteQueue(name('gone'))
  check(await inbox.receive() === null, 'not cancelled')
  done('cancel')

  const silent = await connect(addresses[1], 2)
  const held = await silent.createChannel()
  held.on('error', () => {})
  await publish(channel, name('x'), 'k', 'held')
  await (await Inbox.open(held, name('q'))).receive()
  await ask('freeze')
  await silent.lost
  inbox = await Inbox.open(channel, name('q'))
  m = await inbox.receive()
  check(m.fields.redelivered && String(m.content) === 'held', m)
  channel.ack(m)
  await inbox.close()
  done('silence')

  await publish(channel, name('x'), 'k', 'before')
  await ask('kill')
  await connection.lost
  connection = await reconnect()
  channel = await connection.createConfirmChannel()
  await publish(channel, name('x'), 'k', 'after')
  inbox = await Inbox.open(channel, name('q'))
  for (const want of ['before', 'after']) {
    m = await inbox.receive()
    check(String(m.content) === want, String(m.content))
    channel.ack(m)
  }
  await connection.close()
  done('reconnect')
  process.exit(0)
}

main().catch((e) => fail(e))

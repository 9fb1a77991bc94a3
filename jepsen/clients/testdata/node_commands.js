// Commands with amqplib: carries out the lines that commands_test.go describes.
'use strict'
const amqp = require('amqplib')
const readline = require('readline')

process.on('unhandledRejection', (e) => { console.error(e); process.exit(1) })

function value (text) {
  const [kind, v] = [text[0], text.slice(2)]
  switch (kind) {
    case 'i': return Number(v)
    case 'b': return v === 'true'
    case 's': return v
    default: return v.split(',').map((one) => value(kind.toLowerCase() + ':' + one))
  }
}

function table (fields) {
  return Object.fromEntries(fields.map((f) => [f.slice(0, f.indexOf('=')), value(f.slice(f.indexOf('=') + 1))]))
}

// Waiting keeps what comes, and hands it out one by one.
class Waiting {
  items = []
  wake = () => {}
  add (item) { this.items.push(item); this.wake() }
  async next () {
    while (!this.items.length) await new Promise((resolve) => { this.wake = resolve })
    return this.items.shift()
  }
}

async function main () {
  const [hostname, port] = process.argv[2].split(',')[0].split(':')
  const connection = await amqp.connect({ protocol: 'amqp', hostname, port: Number(port), username: 'guest', password: 'guest' })
  const channel = await connection.createConfirmChannel()
  await channel.prefetch(10)
  const [inbox, replies] = [new Waiting(), new Waiting()]
  let code = 0
  channel.on('return', (m) => { code = m.fields.replyCode })
  await channel.consume('amq.rabbitmq.reply-to', (m) => replies.add(m), { noAck: true })
  const say = (...fields) => console.log(fields.join('\t'))
  const does = {
    declare: async (queue, ...fields) => { await channel.assertQueue(queue, { durable: true, arguments: table(fields) }); say('ok') },
    publish: async (queue, body, ...fields) => {
      channel.publish('', queue, Buffer.from(body), { mandatory: true, headers: table(fields) })
      await channel.waitForConfirms()
      say('ok')
    },
    consume: async (queue, consumerTag, ...fields) => {
      await channel.consume(queue, (m) => inbox.add(m), { consumerTag, arguments: table(fields) })
      say('ok')
    },
    next: async () => {
      const m = await inbox.next()
      say('delivery', m.fields.deliveryTag, Number(m.fields.redelivered), m.content, m.properties.headers['x-lock-token'] ?? '')
    },
    command: async (number, verb, body, ...fields) => {
      code = 0
      const options = { mandatory: true, replyTo: 'amq.rabbitmq.reply-to', correlationId: number, headers: table(fields) }
      const outcome = await new Promise((resolve) => {
        channel.publish('amq.quorate.command', verb, Buffer.from(body), options, (err) => resolve(err ? 'nack' : 'ack'))
      })
      const reply = await replies.next()
      if (reply.properties.correlationId !== number) throw new Error('an answer to ' + reply.properties.correlationId)
      say('answer', outcome, code, reply.content)
    }
  }
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [what, ...rest] = line.split('\t')
    await does[what](...rest)
  }
  await connection.close()
}
main()

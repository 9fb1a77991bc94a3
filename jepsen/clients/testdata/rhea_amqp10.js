// Scenarios of AMQP 1.0 with rhea. It is told host, port, and the beginning of the names of
// queues, one for each scenario, and prints "ok SCENARIO" or "failed SCENARIO REASON".
'use strict'
const rhea = require('rhea')
const assert = require('assert')
const [host, port, prefix] = process.argv.slice(2)
const limit = 30000

const containers = []
function connect(options) {
    const container = rhea.create_container()
    const connection = container.connect(Object.assign({ host, port: Number(port), username: 'guest', password: 'guest', reconnect: false }, options))
    connection.on('error', () => {})
    connection.on('disconnected', () => {})
    connection.on('connection_error', () => {})
    containers.push(connection)
    return connection
}

// event waits for the first of some events, and fails with those of errors.
function event(emitter, ...names) {
    return new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error('no ' + names)), limit)
        for (const name of names) {
            emitter.once(name, (context) => { clearTimeout(timer); resolve(Object.assign({ event: name }, { context })); })
        }
        for (const name of ['sender_error', 'receiver_error', 'session_error', 'connection_error', 'disconnected']) {
            if (!names.includes(name)) {
                emitter.once(name, (context) => {
                    clearTimeout(timer)
                    const of = context.sender || context.receiver || context.session || context.connection
                    reject(new Error(name + ' ' + (of && of.error)))
                })
            }
        }
    })
}

async function sender(connection, address, options) {
    const s = connection.open_sender(Object.assign({ target: { address } }, options))
    await event(s, 'sendable')
    return s
}

async function receiver(connection, address, options) {
    const r = connection.open_receiver(Object.assign({ source: { address }, credit_window: 0, autoaccept: false }, options))
    r.queue = []
    r.waiting = []
    r.on('message', (context) => {
        const one = { message: context.message, delivery: context.delivery }
        if (r.waiting.length > 0) {
            r.waiting.shift()(one)
        } else {
            r.queue.push(one)
        }
    })
    await event(r, 'receiver_open')
    return r
}

function next(r) {
    if (r.queue.length > 0) {
        return Promise.resolve(r.queue.shift())
    }
    return new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error('no message')), limit)
        r.waiting.push((one) => { clearTimeout(timer); resolve(one); })
    })
}

async function get(r) {
    r.add_credit(1)
    return next(r)
}

async function send(s, message, outcome = 'accepted') {
    s.send(message)
    const { event: have, context } = await event(s, 'accepted', 'released', 'rejected', 'modified')
    assert.strictEqual(have, outcome)
    return context.delivery
}

// trip sends a message and gets it.
async function trip(queue, message, options) {
    const c = connect()
    const s = await sender(c, queue, options)
    await send(s, message)
    const r = await receiver(c, queue)
    const one = await get(r)
    one.delivery.accept()
    return one.message
}

// refused waits for the end of a connection, which may be opened first to say why it ends.
async function refused(options) {
    await event(connect(options), 'connection_error', 'connection_close', 'disconnected', 'error')
}

const scenarios = {
    async send(queue) {
        assert.strictEqual((await trip(queue, { body: 'text' })).body, 'text')
    },
    async many(queue) {
        const c = connect()
        const s = await sender(c, queue)
        const n = 500
        let sent = 0, accepted = 0
        const pump = () => { while (s.sendable() && sent < n) { s.send({ body: sent++ }); } }
        const done = new Promise((resolve) => s.on('accepted', () => { if (++accepted === n) { resolve(); } }))
        s.on('sendable', pump)
        pump()
        await done
        const r = await receiver(c, queue, { credit_window: 50, autoaccept: true })
        for (let i = 0; i < n; i++) {
            assert.strictEqual((await next(r)).message.body, i)
        }
    },
    async presettled(queue) {
        const c = connect()
        const s = await sender(c, queue, { snd_settle_mode: 1 })
        s.send({ body: 'settled' })
        const r = await receiver(c, queue)
        assert.strictEqual((await get(r)).message.body, 'settled')
    },
    async 'settled receiver'(queue) {
        const c = connect()
        await send(await sender(c, queue), { body: 'a' })
        const r = await receiver(c, queue, { snd_settle_mode: 1 })
        assert.strictEqual((await get(r)).delivery.remote_settled, true)
    },
    async release(queue) {
        const c = connect()
        await send(await sender(c, queue), { body: 'a' })
        const r = await receiver(c, queue)
        const first = await get(r)
        first.delivery.release()
        const again = await get(r)
        assert.strictEqual(again.message.body, 'a')
        assert.ok(!again.message.first_acquirer)
        assert.ok(!again.message.delivery_count)
        again.delivery.accept()
    },
    async modify(queue) {
        const c = connect()
        await send(await sender(c, queue), { body: 'a' })
        const r = await receiver(c, queue)
        const first = await get(r)
        first.delivery.modified({ delivery_failed: true, undeliverable_here: false, message_annotations: { 'x-why': 'tired' } })
        const again = await get(r)
        assert.strictEqual(again.message.delivery_count, 1)
        assert.strictEqual(again.message.message_annotations['x-why'], 'tired')
        again.delivery.accept()
    },
    async reject(queue) {
        const c = connect()
        const s = await sender(c, queue)
        await send(s, { body: 'a' })
        const r = await receiver(c, queue)
        const first = await get(r)
        first.delivery.reject({ condition: 'own:reason', description: 'no' })
        await send(s, { body: 'b' })
        assert.strictEqual((await get(r)).message.body, 'b')
    },
    async unroutable() {
        const c = connect()
        await send(await sender(c, '/exchanges/amq.direct/nowhere'), { body: 'a' }, 'released')
    },
    async anonymous(queue) {
        const c = connect()
        const s = await sender(c, null)
        await send(s, { to: '/queues/' + encodeURIComponent(queue.slice('/queues/'.length)), body: 'a' })
        await send(s, { body: 'a' }, 'rejected')
        assert.strictEqual((await get(await receiver(c, queue))).message.body, 'a')
    },
    async 'missing queue'() {
        const c = connect()
        for (const open of ['open_sender', 'open_receiver']) {
            const { context } = await event(c[open]('/queues/nope'), 'sender_error', 'receiver_error')
            assert.strictEqual((context.sender || context.receiver).error.condition, 'amqp:not-found')
        }
    },
    async 'two sessions'(queue) {
        const c = connect()
        await event(c, 'connection_open')
        const session = c.create_session()
        session.begin()
        const s = session.open_sender(queue)
        await event(s, 'sendable')
        await send(s, { body: 'a' })
        session.close()
        assert.strictEqual((await get(await receiver(c, queue))).message.body, 'a')
    },
    async drain(queue) {
        const c = connect()
        const s = await sender(c, queue)
        await send(s, { body: 'a' })
        const r = await receiver(c, queue)
        const drained = event(r, 'receiver_drained')
        r.drain_credit()
        r.add_credit(5)
        r.drain = true
        await drained
        assert.strictEqual(r.queue.length, 1)
    },
    async credit(queue) {
        const c = connect()
        const s = await sender(c, queue)
        for (let i = 0; i < 5; i++) {
            await send(s, { body: i })
        }
        const r = await receiver(c, queue)
        r.add_credit(3)
        for (let i = 0; i < 3; i++) {
            assert.strictEqual((await next(r)).message.body, i)
        }
        await new Promise((resolve) => setTimeout(resolve, 200))
        assert.strictEqual(r.queue.length, 0)
    },
    async large(queue) {
        const body = 'x'.repeat(1 << 20)
        assert.ok((await trip(queue, { body })).body === body)
    },
    async 'small frames'(queue) {
        const c = connect({ max_frame_size: 1024 })
        const body = 'y'.repeat(20000)
        await send(await sender(c, queue), { body })
        assert.strictEqual((await get(await receiver(c, queue))).message.body, body)
    },
    async binary(queue) {
        const m = await trip(queue, { body: rhea.message.data_section(Buffer.from([0, 1, 255])) })
        assert.deepStrictEqual(m.body.content, Buffer.from([0, 1, 255]))
    },
    async list(queue) {
        assert.deepStrictEqual((await trip(queue, { body: ['a', 1, null, true] })).body, ['a', 1, null, true])
    },
    async map(queue) {
        assert.deepStrictEqual((await trip(queue, { body: { a: 1, b: { c: 'd' } } })).body, { a: 1, b: { c: 'd' } })
    },
    async sequence(queue) {
        const m = await trip(queue, { body: rhea.message.sequence_section(['a', 'b']) })
        assert.deepStrictEqual(m.body.content, ['a', 'b'])
    },
    async null(queue) {
        assert.strictEqual((await trip(queue, { body: null })).body, null)
    },
    async properties(queue) {
        const p = {
            message_id: 'id', user_id: 'guest', to: 'to', subject: 'subject', reply_to: '/queues/back', correlation_id: 'c', content_type: 'text/plain', content_encoding: 'gzip',
            group_id: 'group', group_sequence: 7, reply_to_group_id: 'back',
        }
        const m = await trip(queue, Object.assign({ body: 'a', absolute_expiry_time: 4e12, creation_time: 17e11 }, p))
        for (const [name, v] of Object.entries(p)) {
            assert.strictEqual(String(m[name]), String(v), name)
        }
        assert.strictEqual(m.creation_time.getTime(), 17e11)
    },
    async 'application properties'(queue) {
        const p = { text: 'ü', yes: true, number: 7, fraction: 1.5, none: null, big: rhea.types.wrap_ulong(1234567890123) }
        const m = await trip(queue, { body: 'a', application_properties: p })
        assert.deepStrictEqual(m.application_properties, Object.assign({}, p, { big: 1234567890123 }))
    },
    async annotations(queue) {
        const m = await trip(queue, { body: 'a', message_annotations: { 'x-own': 'kept' }, delivery_annotations: { 'x-hop': 'gone' } })
        assert.strictEqual(m.message_annotations['x-own'], 'kept')
        assert.strictEqual(m.message_annotations['x-exchange'], '')
        assert.strictEqual(m.delivery_annotations, undefined)
    },
    async header(queue) {
        const m = await trip(queue, { body: 'a', durable: true, priority: 7, ttl: 100000 })
        assert.strictEqual(m.durable, true)
        assert.strictEqual(m.priority, 7)
        assert.strictEqual(m.ttl, 100000)
        assert.strictEqual(m.first_acquirer, true)
    },
    async ttl(queue) {
        const c = connect()
        const s = await sender(c, queue)
        await send(s, { body: 'expires', ttl: 1 })
        await new Promise((resolve) => setTimeout(resolve, 100))
        await send(s, { body: 'stays' })
        assert.strictEqual((await get(await receiver(c, queue))).message.body, 'stays')
    },
    async 'detach and attach'(queue) {
        const c = connect()
        for (let i = 0; i < 3; i++) {
            const s = await sender(c, queue, { name: 'again' })
            await send(s, { body: i })
            s.close()
            await event(s, 'sender_close')
        }
        const r = await receiver(c, queue)
        for (let i = 0; i < 3; i++) {
            assert.strictEqual((await get(r)).message.body, i)
        }
    },
    async 'unsettled at close'(queue) {
        const c = connect()
        await send(await sender(c, queue), { body: 'a' })
        await get(await receiver(c, queue))
        c.close()
        await event(c, 'connection_close')
        assert.strictEqual((await get(await receiver(connect(), queue))).message.body, 'a')
    },
    async 'request and reply'(queue) {
        const c = connect()
        const answers = c.open_receiver({ source: { dynamic: true, capabilities: ['temporary-queue'] }, credit_window: 1 })
        await event(answers, 'receiver_open')
        const answered = event(answers, 'message')
        const requests = await receiver(c, queue)
        const s = await sender(c, null)
        await send(s, { to: queue, reply_to: answers.source.address, correlation_id: 7, body: 'question' })
        const one = await get(requests)
        await send(s, { to: one.message.reply_to, correlation_id: one.message.correlation_id, body: 'answer' })
        one.delivery.accept()
        const { context } = await answered
        assert.strictEqual(context.message.body, 'answer')
        assert.strictEqual(context.message.correlation_id, 7)
    },
    async management(queue) {
        const c = connect()
        const options = { name: 'pair', properties: { paired: true }, snd_settle_mode: 1 }
        const s = c.open_sender(Object.assign({ source: { address: 'client' }, target: { address: '/management' } }, options))
        await event(s, 'sender_open')
        const r = c.open_receiver(Object.assign({ source: { address: '/management' }, target: { address: 'client' }, credit_window: 10 }, options))
        await event(r, 'receiver_open')
        await new Promise((resolve) => setTimeout(resolve, 100)); // the flow goes first
        const ask = async (method, to, body) => {
            const answered = event(r, 'message')
            s.send({ message_id: method, subject: method, to, reply_to: '$me', body })
            const { message } = (await answered).context
            assert.strictEqual(message.correlation_id, method)
            return message
        }
        const name = encodeURIComponent(queue.slice('/queues/'.length) + ' declared/é')
        assert.strictEqual((await ask('PUT', '/queues/' + name, { durable: true, arguments: { 'x-queue-type': 'quorum' } })).subject, '201')
        const have = await ask('GET', '/queues/' + name, null)
        assert.strictEqual(have.subject, '200')
        assert.strictEqual(have.body.type, 'quorum')
        assert.strictEqual((await ask('DELETE', '/queues/' + name, null)).subject, '200')
        assert.strictEqual((await ask('GET', '/queues/' + name, null)).subject, '404')
    },
    async 'wrong password'() {
        await refused({ password: 'wrong' })
    },
    async 'unknown vhost'() {
        await refused({ hostname: 'vhost:nope', host: undefined, connection_details: () => ({ host, port: Number(port) }) })
    },
    async heartbeat(queue) {
        const c = connect({ idle_time_out: 1000 })
        const s = await sender(c, queue)
        await new Promise((resolve) => setTimeout(resolve, 2500))
        await send(s, { body: 'a' })
    },
    async outcomes(queue) {
        const c = connect()
        const s = await sender(c, queue)
        for (let i = 0; i < 4; i++) {
            await send(s, { body: i })
        }
        const r = await receiver(c, queue)
        r.add_credit(4)
        const all = [await next(r), await next(r), await next(r), await next(r)]
        all[2].delivery.accept()
        all[0].delivery.accept()
        all[3].delivery.release()
        all[1].delivery.accept()
        assert.strictEqual((await get(r)).message.body, 3)
    },
}

async function main() {
    await Promise.all(Object.entries(scenarios).map(async ([name, run]) => {
        try {
            await run('/queues/' + prefix + '.' + name.replace(/ /g, '-'))
            console.log('ok ' + name)
        } catch (e) {
            console.log('failed ' + name + ' ' + String(e && e.message || e).replace(/\n/g, ' '))
        }
    }))
    process.exit(0)
}

process.on('uncaughtException', (e) => console.error(e))
if (process.argv[2] === 'list') {
    Object.keys(scenarios).forEach((name) => console.log(name))
} else {
    main()
}

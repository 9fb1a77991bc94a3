// A message of each kind to the queue seed, and back.
const rhea = require('rhea');
const container = rhea.create_container();
let got = 0, sent = false;
container.on('sendable', (c) => {
  if (sent) return;
  sent = true;
  c.sender.send({ body: rhea.message.data_section(Buffer.from('data')), message_id: 1, application_properties: { n: -1, s: 's', f: 1.5 } });
  c.sender.send({ body: { k: [1, true, null] }, durable: true, priority: 5, ttl: 100000, message_annotations: { 'x-k': 'v' } });
  c.sender.send({ body: rhea.message.sequence_section(['a', 1]), subject: 's', correlation_id: 'c', creation_time: new Date(0), group_id: 'g' });
});
container.on('message', (c) => {
  got++;
  if (got === 1) c.delivery.accept();
  else if (got === 2) c.delivery.update(true, rhea.message.rejected({ error: { condition: 'app:bad', description: 'd' } }).described());
  else {
    c.delivery.update(true, rhea.message.modified({ delivery_failed: true, undeliverable_here: true, message_annotations: { 'x-m': 1 } }).described());
    c.receiver.close();
    c.connection.close();
  }
});
const connection = container.connect({ host: process.env.HOST, port: process.env.PORT, username: 'guest', password: 'guest', reconnect: false });
connection.open_sender('/queues/seed');
connection.open_receiver({ source: '/queues/seed', credit_window: 1, autoaccept: false });

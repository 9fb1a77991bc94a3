"""Commands with pika: carries out the lines that commands_test.go describes."""
import sys

import pika

host, port = sys.argv[1].split(",")[0].split(":")
connection = pika.BlockingConnection(pika.ConnectionParameters(
    host, int(port), credentials=pika.PlainCredentials("guest", "guest")))
channel = connection.channel()
channel.confirm_delivery()
channel.basic_qos(prefetch_count=10)
replies, inbox = {}, []
channel.basic_consume("amq.rabbitmq.reply-to", lambda c, m, p, body: replies.update({p.correlation_id: body}), auto_ack=True)


def value(text):
    kind, _, v = text.partition(":")
    if kind in ("I", "S"):
        return [value(kind.lower() + ":" + one) for one in v.split(",")]
    return {"i": int, "b": lambda s: s == "true", "s": str}[kind](v)


def table(fields):
    return {name: value(v) for name, _, v in (f.partition("=") for f in fields)}


def say(*fields):
    print("\t".join(str(f) for f in fields), flush=True)


def command(number, verb, body, *fields):
    properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id=number, headers=table(fields))
    outcome, code = "ack", 0
    try:
        channel.basic_publish("amq.quorate.command", verb, body.encode(), properties, mandatory=True)
    except pika.exceptions.UnroutableError as e:
        outcome, code = "returned", e.messages[0].method.reply_code
    except pika.exceptions.NackError as e:
        outcome, code = "nack", e.messages[0].method.reply_code
    while number not in replies:
        connection.process_data_events(30)
    say("answer", outcome, code, replies.pop(number).decode())


def following():
    while not inbox:
        connection.process_data_events(30)
    method, properties, body = inbox.pop(0)
    token = (properties.headers or {}).get("x-lock-token", "")
    say("delivery", method.delivery_tag, int(method.redelivered), body.decode(), token)


for line in sys.stdin:
    what, *rest = line.rstrip("\n").split("\t")
    if what == "declare":
        channel.queue_declare(rest[0], durable=True, arguments=table(rest[1:]))
        say("ok")
    elif what == "publish":
        channel.basic_publish("", rest[0], rest[1].encode(), pika.BasicProperties(headers=table(rest[2:])), mandatory=True)
        say("ok")
    elif what == "consume":
        channel.basic_consume(rest[0], lambda c, m, p, body: inbox.append((m, p, body)), consumer_tag=rest[1], arguments=table(rest[2:]))
        say("ok")
    elif what == "next":
        following()
    elif what == "command":
        command(*rest)
connection.close()

// Commands with the Java client: carries out the lines that commands_test.go describes.
import com.rabbitmq.client.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;

public class JavaCommands {
    static final BlockingQueue<Delivery> inbox = new LinkedBlockingQueue<>(), replies = new LinkedBlockingQueue<>();
    static final BlockingQueue<Integer> returns = new LinkedBlockingQueue<>();
    static final BlockingQueue<Boolean> confirms = new LinkedBlockingQueue<>();

    record Delivery(Envelope envelope, AMQP.BasicProperties properties, String body) {}

    static Object value(String text) {
        String v = text.substring(2);
        switch (text.charAt(0)) {
            case 'i': return Long.valueOf(v);
            case 'b': return Boolean.valueOf(v);
            case 's': return v;
        }
        List<Object> all = new ArrayList<>();
        for (String one : v.split(",")) all.add(value(text.substring(0, 1).toLowerCase() + ":" + one));
        return all;
    }

    static Map<String, Object> table(String[] fields, int from) {
        Map<String, Object> all = new HashMap<>();
        for (int i = from; i < fields.length; i++) {
            int end = fields[i].indexOf('=');
            all.put(fields[i].substring(0, end), value(fields[i].substring(end + 1)));
        }
        return all;
    }

    static Consumer into(Channel channel, BlockingQueue<Delivery> queue) {
        return new DefaultConsumer(channel) {
            @Override public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
                queue.add(new Delivery(envelope, properties, new String(body, StandardCharsets.UTF_8)));
            }
        };
    }

    static Delivery await(BlockingQueue<Delivery> queue) throws InterruptedException {
        Delivery d = queue.poll(30, TimeUnit.SECONDS);
        if (d == null) throw new IllegalStateException("nothing came");
        return d;
    }

    // One message is unconfirmed at a time. waitForConfirms may return true for one that is nacked in that moment.
    static boolean confirmed() throws InterruptedException {
        Boolean acked = confirms.poll(30, TimeUnit.SECONDS);
        if (acked == null) throw new IllegalStateException("no confirm came");
        return acked;
    }

    static void say(Object... fields) {
        StringJoiner line = new StringJoiner("\t");
        for (Object f : fields) line.add(f.toString());
        System.out.println(line);
    }

    static void carryOut(Channel channel, String[] f) throws Exception {
        switch (f[0]) {
            case "declare":
                channel.queueDeclare(f[1], true, false, false, table(f, 2));
                say("ok");
                break;
            case "publish":
                channel.basicPublish("", f[1], true, new AMQP.BasicProperties.Builder().headers(table(f, 3)).build(), f[2].getBytes(StandardCharsets.UTF_8));
                if (!confirmed()) throw new IllegalStateException("not confirmed");
                say("ok");
                break;
            case "consume":
                channel.basicConsume(f[1], false, f[2], false, false, table(f, 3), into(channel, inbox));
                say("ok");
                break;
            case "next":
                Delivery d = await(inbox);
                Map<String, Object> headers = d.properties().getHeaders();
                Object token = headers == null ? null : headers.get("x-lock-token");
                say("delivery", d.envelope().getDeliveryTag(), d.envelope().isRedeliver() ? 1 : 0, d.body(), token == null ? "" : token);
                break;
            case "command":
                AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder()
                    .replyTo("amq.rabbitmq.reply-to").correlationId(f[1]).headers(table(f, 4)).build();
                channel.basicPublish("amq.quorate.command", f[2], true, properties, f[3].getBytes(StandardCharsets.UTF_8));
                boolean acked = confirmed();
                Delivery reply = await(replies);
                Integer code = returns.poll();
                if (!f[1].equals(reply.properties().getCorrelationId())) throw new IllegalStateException("another answer");
                say("answer", acked ? "ack" : "nack", code == null ? 0 : code, reply.body());
                break;
            default:
                throw new IllegalArgumentException(f[0]);
        }
    }

    public static void main(String[] args) throws Exception {
        String[] address = args[0].split(",")[0].split(":");
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(address[0]);
        factory.setPort(Integer.parseInt(address[1]));
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            channel.addConfirmListener((tag, multiple) -> confirms.add(true), (tag, multiple) -> confirms.add(false));
            channel.basicQos(10);
            channel.addReturnListener((code, text, exchange, key, properties, body) -> returns.add(code));
            channel.basicConsume("amq.rabbitmq.reply-to", true, into(channel, replies));
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line; (line = in.readLine()) != null;) carryOut(channel, line.split("\t", -1));
        }
    }
}

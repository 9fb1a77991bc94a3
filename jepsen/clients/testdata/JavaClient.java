import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The steps of the client test with the Java client. */
public class JavaClient {
    static String[] addresses;
    static String prefix;
    static final BufferedReader in = new BufferedReader(new InputStreamReader(System.in));

    static Connection connect(String address, int heartbeat) throws Exception {
        ConnectionFactory f = new ConnectionFactory();
        f.setHost(address.split(":")[0]);
        f.setPort(Integer.parseInt(address.split(":")[1]));
        f.setRequestedHeartbeat(heartbeat);
        f.setAutomaticRecoveryEnabled(false);
        return f.newConnection();
    }

    static Connection reconnect() throws Exception {
        for (int attempt = 0; attempt < 300; attempt++) {
            try {
                return connect(addresses[attempt % addresses.length], 60);
            } catch (java.io.IOException | TimeoutException e) {
                Thread.sleep(100);
            }
        }
        throw new IllegalStateException("no node lets us in");
    }

    static void done(String step) {
        System.out.println("ok " + step);
    }

    static void ask(String what) throws Exception {
        System.out.println(what);
        in.readLine();
    }

    static String name(String suffix) {
        return prefix + "." + suffix;
    }

    static void check(boolean holds, Object what) {
        if (!holds) {
            throw new IllegalStateException("check failed: " + what);
        }
    }

    static void publish(Channel ch, String exchange, String key, String body) throws Exception {
        ch.basicPublish(exchange, key, true, MessageProperties.PERSISTENT_BASIC, body.getBytes());
        ch.waitForConfirmsOrDie(30000);
    }

    /** Keeps what a consumer gets. */
    static class Inbox extends DefaultConsumer {
        final BlockingQueue<Delivery> messages = new LinkedBlockingQueue<>();
        final BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();

        Inbox(Channel ch, String queue) throws Exception {
            super(ch);
            ch.basicConsume(queue, this);
        }

        @Override
        public void handleDelivery(String tag, Envelope e, AMQP.BasicProperties p, byte[] body) {
            messages.add(new Delivery(e, p, body));
        }

        @Override
        public void handleCancel(String tag) {
            cancelled.add(tag);
        }

        Delivery receive() throws Exception {
            Delivery d = messages.poll(30, TimeUnit.SECONDS);
            check(d != null, "nothing came");
            return d;
        }

        void close() throws Exception {
            getChannel().basicCancel(getConsumerTag());
        }
    }

    static String text(Delivery d) {
        return new String(d.getBody());
    }

    static void awaitLost(Connection c) throws Exception {
        for (int i = 0; c.isOpen(); i++) {
            check(i < 6000, "the connection is not lost");
            Thread.sleep(10);
        }
    }

    public static void main(String[] args) throws Exception {
        addresses = args[0].split(",");
        prefix = args[1];
        Connection connection = connect(addresses[2], 60);
        Channel ch = connection.createChannel();
        ch.confirmSelect();
        simple(connection, ch);
        silence(ch);
        publish(ch, name("x"), "k", "before");
        ask("kill");
        awaitLost(connection);
        connection = reconnect();
        ch = connection.createChannel();
        ch.confirmSelect();
        publish(ch, name("x"), "k", "after");
        Inbox inbox = new Inbox(ch, name("q"));
        for (String want : new String[] {"before", "after"}) {
            Delivery d = inbox.receive();
            check(text(d).equals(want), text(d));
            ch.basicAck(d.getEnvelope().getDeliveryTag(), false);
        }
        connection.close();
        done("reconnect");
    }

    static void simple(Connection connection, Channel ch) throws Exception {
        ch.exchangeDeclare(name("x"), "direct", true);
        ch.queueDeclare(name("q"), true, false, false, Map.of("x-queue-type", "quorum"));
        ch.queueBind(name("q"), name("x"), "k");
        done("declare");

        for (int i = 0; i < 100; i++) {
            ch.basicPublish(name("x"), "k", true, MessageProperties.PERSISTENT_BASIC, ("" + i).getBytes());
        }
        ch.waitForConfirmsOrDie(30000);
        done("confirms");

        ch.basicQos(10);
        Inbox inbox = new Inbox(ch, name("q"));
        for (int i = 0; i < 100; i += 10) {
            Delivery d = null;
            for (int n = i; n < i + 10; n++) {
                d = inbox.receive();
                check(text(d).equals("" + n), text(d));
            }
            Thread.sleep(50);
            check(inbox.messages.isEmpty(), "more than the prefetch");
            ch.basicAck(d.getEnvelope().getDeliveryTag(), true);
        }
        done("prefetch");

        publish(ch, name("x"), "k", "again");
        Delivery d = inbox.receive();
        check(!d.getEnvelope().isRedeliver() && text(d).equals("again"), text(d));
        ch.basicNack(d.getEnvelope().getDeliveryTag(), false, true);
        d = inbox.receive();
        check(d.getEnvelope().isRedeliver() && text(d).equals("again"), text(d));
        ch.basicAck(d.getEnvelope().getDeliveryTag(), false);
        inbox.close();
        done("requeue");

        ch.queueDeclare(name("dead"), true, false, false, null);
        ch.queueDeclare(name("ttl"), true, false, false, Map.of(
            "x-message-ttl", 200, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", name("dead")));
        publish(ch, "", name("ttl"), "mortal");
        inbox = new Inbox(ch, name("dead"));
        d = inbox.receive();
        Map<?, ?> death = (Map<?, ?>) ((List<?>) d.getProperties().getHeaders().get("x-death")).get(0);
        check(text(d).equals("mortal") && death.get("reason").toString().equals("expired")
            && death.get("queue").toString().equals(name("ttl")), death);
        ch.basicAck(d.getEnvelope().getDeliveryTag(), false);
        inbox.close();
        done("expiry");

        ch.queueDeclare(name("gone"), true, false, false, null);
        inbox = new Inbox(ch, name("gone"));
        connection.createChannel().queueDelete(name("gone"));
        check(inbox.cancelled.poll(30, TimeUnit.SECONDS) != null, "not cancelled");
        done("cancel");
    }

    static void silence(Channel ch) throws Exception {
        Connection silent = connect(addresses[1], 2);
        publish(ch, name("x"), "k", "held");
        new Inbox(silent.createChannel(), name("q")).receive();
        ask("freeze");
        awaitLost(silent);
        Inbox inbox = new Inbox(ch, name("q"));
        Delivery d = inbox.receive();
        check(d.getEnvelope().isRedeliver() && text(d).equals("held"), text(d));
        ch.basicAck(d.getEnvelope().getDeliveryTag(), false);
        inbox.close();
        done("silence");
    }
}

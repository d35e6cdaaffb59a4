import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A Kafka broker in this process. The arguments are its properties file and its address. Each line of standard input is a command, a
 * tab and its text; the answer is a line of `done` or `error`, a tab and JSON.
 *
 * <p>`topic` makes a topic. `send` sends messages: a topic, the first and the last number, and a template with %1$d for the number.
 * `rewind` sets the offsets of a group, which has no members, to the beginning of a topic.
 */
public final class KafkaProgram {
  private KafkaProgram() {}

  public static void main(String[] arguments) throws Exception {
    Thread broker = new Thread(() -> kafka.Kafka.main(new String[] {arguments[0]}));
    broker.setDaemon(true);
    broker.start();
    Map<String, Object> address = Map.of("bootstrap.servers", arguments[1]);
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      String[] words = line.split("\t");
      try {
        switch (words[0]) {
          case "topic" -> makeTopic(address, words[1]);
          case "rewind" -> rewind(address, words[1], words[2]);
          case "send" -> send(address, words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), words[4]);
          default -> throw new IllegalArgumentException(words[0]);
        }
        System.out.println("done\tnull");
      } catch (Exception error) {
        System.out.println("error\t\"" + error.toString().replaceAll("[^ -~]|[\"\\\\]", "?") + "\"");
      }
    }
    Runtime.getRuntime().halt(0);
  }

  private static void makeTopic(Map<String, Object> address, String name) throws Exception {
    try (Admin admin = Admin.create(address)) {
      admin.createTopics(List.of(new NewTopic(name, 2, (short) 1))).all().get();
    }
  }

  private static void rewind(Map<String, Object> address, String group, String topic) throws Exception {
    OffsetAndMetadata beginning = new OffsetAndMetadata(0);
    try (Admin admin = Admin.create(address)) {
      admin.alterConsumerGroupOffsets(
              group, Map.of(new TopicPartition(topic, 0), beginning, new TopicPartition(topic, 1), beginning))
          .all()
          .get();
    }
  }

  private static void send(Map<String, Object> address, String topic, int first, int last, String template) throws Exception {
    try (KafkaProducer<String, String> producer = new KafkaProducer<>(address, new StringSerializer(), new StringSerializer())) {
      for (int number = first; number < last; number++) {
        producer.send(new ProducerRecord<>(topic, String.format(template, number)));
      }
      producer.send(new ProducerRecord<>(topic, String.format(template, last))).get();
    }
  }
}

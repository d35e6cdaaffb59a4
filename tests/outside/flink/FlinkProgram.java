import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Array;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.table.catalog.Column;
import org.apache.flink.table.types.logical.ArrayType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.MapType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * One Flink session in this process. Each line of standard input is a command, a tab and its text, with `\n` for line breaks; each
 * line of the answer is a word, a tab and JSON. The settings are the arguments: NAME=VALUE.
 *
 * <p>`sql` runs a statement to its end and prints its rows; `start` runs one in the background; `wait` waits for that one's end;
 * `open` begins to read a stream, and `take` prints so many rows of it.
 */
public final class FlinkProgram {
  private static final DateTimeFormatter MOMENT =
      DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss.SSSSSSSSS");
  private static TableEnvironment tables;
  private static JobClient job;
  private static TableResult stream;
  private static CloseableIterator<Row> rows;

  private FlinkProgram() {}

  public static void main(String[] arguments) throws Exception {
    Configuration settings = new Configuration();
    for (String argument : arguments) {
      int middle = argument.indexOf('=');
      settings.setString(argument.substring(0, middle), argument.substring(middle + 1));
    }
    tables = TableEnvironment.create(EnvironmentSettings.newInstance().withConfiguration(settings).build());
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      String[] words = line.split("\t", 2);
      try {
        run(words[0], words[1].replace("\\n", "\n"));
        print("done", "null");
      } catch (Throwable error) {
        print("error", quote(describe(error)));
      }
    }
    Runtime.getRuntime().halt(0);
  }

  private static void run(String command, String text) throws Exception {
    switch (command) {
      case "sql" -> runToEnd(text);
      case "start" -> job = tables.executeSql(text).getJobClient().orElseThrow();
      case "wait" -> job.getJobExecutionResult().get();
      case "open" -> {
        stream = tables.executeSql(text);
        rows = stream.collect();
      }
      case "take" -> {
        for (int left = Integer.parseInt(text); left > 0; left--) {
          print("row", show(rows.next(), stream));
        }
      }
      default -> throw new IllegalArgumentException(command);
    }
  }

  private static void runToEnd(String statement) throws Exception {
    TableResult result = tables.executeSql(statement);
    if (result.getJobClient().isPresent() && statement.stripLeading().startsWith("INSERT")) {
      result.await();
      return;
    }
    try (CloseableIterator<Row> found = result.collect()) {
      while (found.hasNext()) {
        print("row", show(found.next(), result));
      }
    }
  }

  private static void print(String word, String json) {
    System.out.println(word + "\t" + json);
    System.out.flush();
  }

  private static String describe(Throwable error) {
    List<String> messages = new ArrayList<>();
    for (Throwable each = error; each != null; each = each.getCause()) {
      messages.add(each.toString());
    }
    return String.join("\n", messages);
  }

  private static String show(Row row, TableResult result) {
    List<String> fields = new ArrayList<>();
    List<Column> columns = result.getResolvedSchema().getColumns();
    for (int at = 0; at < columns.size(); at++) {
      LogicalType type = columns.get(at).getDataType().getLogicalType();
      fields.add(quote(columns.get(at).getName()) + ": " + show(row.getField(at), type));
    }
    return "{" + String.join(", ", fields) + "}";
  }

  private static String show(Object value, LogicalType type) {
    if (value == null) {
      return "null";
    }
    if (value instanceof Row row) {
      List<String> fields = new ArrayList<>();
      List<RowType.RowField> known = ((RowType) type).getFields();
      for (int at = 0; at < known.size(); at++) {
        fields.add(quote(known.get(at).getName()) + ": " + show(row.getField(at), known.get(at).getType()));
      }
      return "{" + String.join(", ", fields) + "}";
    }
    if (value instanceof Map<?, ?> map) {
      MapType of = (MapType) type;
      return map.entrySet().stream()
          .map(each -> "[" + show(each.getKey(), of.getKeyType()) + ", " + show(each.getValue(), of.getValueType()) + "]")
          .collect(Collectors.joining(", ", "[", "]"));
    }
    if (value instanceof byte[] bytes) {
      return quote(HexFormat.of().formatHex(bytes));
    }
    if (value.getClass().isArray()) {
      List<String> elements = new ArrayList<>();
      for (int at = 0; at < Array.getLength(value); at++) {
        elements.add(show(Array.get(value, at), ((ArrayType) type).getElementType()));
      }
      return "[" + String.join(", ", elements) + "]";
    }
    return showScalar(value);
  }

  private static String showScalar(Object value) {
    if (value instanceof Float || value instanceof Double) {
      return Double.toString(((Number) value).doubleValue());
    }
    if (value instanceof Integer || value instanceof Long || value instanceof Short || value instanceof Byte || value instanceof Boolean) {
      return value.toString();
    }
    if (value instanceof LocalDateTime moment) {
      return quote(MOMENT.format(moment));
    }
    if (value instanceof Instant moment) {
      return quote(MOMENT.format(moment.atOffset(ZoneOffset.UTC)));
    }
    if (value instanceof LocalTime time) {
      return quote(DateTimeFormatter.ofPattern(time.getNano() == 0 ? "HH:mm:ss" : "HH:mm:ss.SSSSSS").format(time));
    }
    return quote(value.toString());
  }

  private static String quote(String text) {
    StringBuilder quoted = new StringBuilder("\"");
    for (char letter : text.toCharArray()) {
      boolean isPlain = letter >= ' ' && letter <= '~' && letter != '"' && letter != '\\';
      quoted.append(isPlain ? String.valueOf(letter) : String.format("\\u%04x", (int) letter));
    }
    return quoted.append('"').toString();
  }
}

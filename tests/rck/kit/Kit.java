package org.apache.iceberg.rest;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Objects;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ConditionEvaluationResult;
import org.junit.jupiter.api.extension.ExecutionCondition;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.Launcher;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

/**
 * Runs one of the two kits against a catalog and prints a line for each test: outcome, name, reason; with tabs between.
 *
 * <p>Standard input brings properties, then an empty line; when it ends, so does this program.
 */
public final class Kit {
  private static final String PER_TEST = "120 s";

  private Kit() {}

  public static void main(String[] words) throws Exception {
    BufferedReader input =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Properties settings = new Properties();
    settings.load(new StringReader(head(input)));
    settings.forEach((name, value) -> System.setProperty((String) name, (String) value));
    endWith(input);
    Class<?> tests = settings.getProperty("kit").equals("table") ? Tables.class : Views.class;
    LauncherDiscoveryRequestBuilder request =
        LauncherDiscoveryRequestBuilder.request()
            .selectors(DiscoverySelectors.selectClass(tests))
            .configurationParameter(RCKUtils.RCK_LOCAL, "false")
            .configurationParameter("junit.jupiter.execution.timeout.test.method.default", PER_TEST);
    Launcher launcher = LauncherFactory.create();
    launcher.registerTestExecutionListeners(new Teller());
    launcher.execute(request.build());
    System.out.println("done");
    Runtime.getRuntime().halt(0);
  }

  private static String head(BufferedReader input) throws Exception {
    StringBuilder lines = new StringBuilder();
    for (String line = input.readLine(); line != null && !line.isEmpty(); line = input.readLine()) {
      lines.append(line).append('\n');
    }
    return lines.toString();
  }

  private static void endWith(BufferedReader input) {
    Thread watcher =
        new Thread(
            () -> {
              try {
                while (input.read() >= 0) {}
              } catch (Exception broken) {
                // as good as ended
              }
              Runtime.getRuntime().halt(3);
            });
    watcher.setDaemon(true);
    watcher.start();
  }

  static boolean allows(String name) {
    return Boolean.getBoolean("rck." + name);
  }

  static String base() {
    return System.getProperty("rck.base-location");
  }

  /** Leaves the catalog as the next test expects it; the kit itself forgets some of its namespaces. */
  private static void clear(RESTCatalog catalog, Namespace namespace) {
    for (Namespace child : catalog.listNamespaces(namespace)) {
      clear(catalog, child);
      ifPossible(() -> catalog.listViews(child).forEach(catalog::dropView));
      ifPossible(() -> catalog.listTables(child).forEach(table -> catalog.dropTable(table, false)));
      ifPossible(() -> catalog.dropNamespace(child));
    }
  }

  private static void ifPossible(Runnable step) {
    try {
      step.run();
    } catch (RuntimeException refused) {
      // `main` stays, and what else stays shows in the test that finds it
    }
  }

  static class Clearing implements BeforeEachCallback, AfterEachCallback {
    @Override
    public void beforeEach(ExtensionContext context) {
      clear(context);
    }

    /** The kit asserts that it finds nothing, so a second run needs what the first one found. */
    @Override
    public void afterEach(ExtensionContext context) {
      clear(context);
    }

    private static void clear(ExtensionContext context) {
      Object test = context.getRequiredTestInstance();
      RESTCatalog catalog = test instanceof Tables ? ((Tables) test).client() : ((Views) test).client();
      Kit.clear(catalog, Namespace.empty());
    }
  }

  /** One test moves a file of the warehouse with java.nio. */
  static class NeedsFolder implements ExecutionCondition {
    @Override
    public ConditionEvaluationResult evaluateExecutionCondition(ExtensionContext context) {
      String name = context.getTestMethod().map(Method::getName).orElse("");
      return name.equals("testLoadTableWithMissingMetadataFile") && !base().startsWith("file:")
          ? ConditionEvaluationResult.disabled("needs a warehouse in a local folder")
          : ConditionEvaluationResult.enabled("");
    }
  }

  @ExtendWith({Clearing.class, NeedsFolder.class})
  static class Tables extends RESTCompatibilityKitCatalogTests {
    RESTCatalog client() {
      return catalog();
    }

    @Override
    protected boolean supportsNestedNamespaces() {
      return allows("supports-nested-namespaces");
    }

    @Override
    protected boolean supportsNamesWithSlashes() {
      return allows("supports-names-with-slashes");
    }

    @Override
    protected String baseTableLocation(TableIdentifier table) {
      return String.join("/", base(), table.namespace().toString(), table.name());
    }

    /** The kit would start a second server for this one, and 1.10 has none like it. */
    @Test
    public void createTableInUniqueLocation() {
      catalog().createNamespace(TABLE.namespace());
      catalog().createTable(TABLE, SCHEMA);
      catalog().renameTable(TABLE, RENAMED_TABLE);
      catalog().createTable(TABLE, SCHEMA);
      String first = catalog().loadTable(RENAMED_TABLE).location();
      assertThat(catalog().loadTable(TABLE).location()).isNotEqualTo(first);
    }
  }

  @ExtendWith(Clearing.class)
  static class Views extends RESTCompatibilityKitViewCatalogTests {
    RESTCatalog client() {
      return catalog();
    }

    protected String viewLocation(String... parts) {
      return base() + "/" + String.join("/", parts);
    }
  }

  private static class Teller implements TestExecutionListener {
    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
      tell("skipped", test, reason);
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
      String reason = result.getThrowable().map(Objects::toString).orElse("");
      if (result.getStatus() == TestExecutionResult.Status.FAILED) {
        tell("failed", test, reason);
      } else if (test.isTest()) {
        boolean ran = result.getStatus() == TestExecutionResult.Status.SUCCESSFUL;
        tell(ran ? "passed" : "skipped", test, reason);
      }
    }

    private static void tell(String outcome, TestIdentifier test, String reason) {
      String name = "*";
      if (test.getSource().orElse(null) instanceof MethodSource) {
        String method = ((MethodSource) test.getSource().get()).getMethodName();
        String shown = test.getDisplayName();
        name = shown.startsWith(method) ? method : method + "(" + shown + ")";
      }
      String line = reason.lines().map(String::strip).collect(Collectors.joining(" "));
      System.out.println(String.join("\t", List.of(outcome, name, line.replace('\t', ' '))));
    }
  }
}

package org.apache.iceberg.spark;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import org.apache.iceberg.catalog.Namespace;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ConditionEvaluationResult;
import org.junit.jupiter.api.extension.ExecutionCondition;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.platform.engine.DiscoverySelector;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.engine.support.descriptor.ClassSource;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.Launcher;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

/**
 * Runs test classes of Iceberg's with their REST catalog alone, and prints a line for each test:
 * `result`, outcome, name, reason; with tabs between.
 *
 * <p>The arguments are names of classes, or of `class#method`. When standard input ends, so does this
 * program.
 */
public final class SparkSuite {
  private static final int REASON_LINES = 40;
  private static final String PER_TEST = "300 s";

  private SparkSuite() {}

  public static void main(String[] names) throws Exception {
    endWithInput();
    List<DiscoverySelector> selectors = new ArrayList<>();
    for (String name : names) {
      selectors.add(
          name.contains("#")
              ? DiscoverySelectors.selectMethod(name)
              : DiscoverySelectors.selectClass(name));
    }
    LauncherDiscoveryRequestBuilder request =
        LauncherDiscoveryRequestBuilder.request()
            .selectors(selectors)
            .configurationParameter("junit.jupiter.extensions.autodetection.enabled", "true")
            .configurationParameter("junit.jupiter.execution.timeout.testtemplate.method.default", PER_TEST);
    Launcher launcher = LauncherFactory.create();
    launcher.registerTestExecutionListeners(new Printer());
    launcher.execute(request.build());
    System.out.println("done");
    Runtime.getRuntime().halt(0);
  }

  private static void endWithInput() {
    BufferedReader input =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
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

  /**
   * Leaves out the parameters that name other catalogs, and tests that take none. Drops the tables that an earlier test left, because
   * the tests themselves purge, which is refused.
   */
  public static class RestOnly implements ExecutionCondition, BeforeEachCallback {
    @Override
    public void beforeEach(ExtensionContext context) {
      Namespace namespace = Namespace.of("default");
      TestBaseWithCatalog.restCatalog
          .listTables(namespace)
          .forEach(table -> TestBaseWithCatalog.restCatalog.dropTable(table, false));
    }

    @Override
    public ConditionEvaluationResult evaluateExecutionCondition(ExtensionContext context) {
      Optional<Class<?>> tests = context.getTestClass();
      if (tests.isPresent() && !TestBaseWithCatalog.class.isAssignableFrom(tests.get())) {
        return ConditionEvaluationResult.disabled("other catalog");
      }
      boolean isInvocation = context.getUniqueId().contains("test-template-invocation");
      boolean isTemplate = context.getUniqueId().contains("test-template");
      if (isInvocation ? context.getDisplayName().contains("type=rest") : isTemplate || context.getTestMethod().isEmpty()) {
        return ConditionEvaluationResult.enabled("");
      }
      return ConditionEvaluationResult.disabled("other catalog");
    }
  }

  private static class Printer implements TestExecutionListener {
    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
      if (!reason.contains("other catalog")) {
        print("skipped", test, reason);
      }
    }

    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
      String reason = result.getThrowable().map(Printer::describe).orElse("");
      if (result.getStatus() == TestExecutionResult.Status.FAILED) {
        print("failed", test, reason);
      } else if (test.isTest()) {
        boolean ran = result.getStatus() == TestExecutionResult.Status.SUCCESSFUL;
        print(ran ? "passed" : "skipped", test, reason);
      }
    }

    /** The message of each cause, and the lines of the test itself. */
    private static String describe(Throwable error) {
      List<String> lines = new ArrayList<>();
      for (Throwable each = error; each != null; each = each.getCause()) {
        lines.add(each.toString());
        Arrays.stream(each.getStackTrace())
            .filter(frame -> frame.getClassName().matches("org\\.apache\\.iceberg\\.spark\\..*Test.*"))
            .forEach(frame -> lines.add("  at " + frame));
      }
      return lines.stream().distinct().limit(REASON_LINES).collect(Collectors.joining("\n"));
    }

    private static void print(String outcome, TestIdentifier test, String reason) {
      String line = reason.replace("\\", "\\\\").replace("\t", " ").lines().collect(Collectors.joining("\\n"));
      System.out.println(String.join("\t", List.of("result", outcome, name(test), line)));
      System.out.flush();
    }

    /** The class and the method, and those parameters that do not name the catalog. */
    private static String name(TestIdentifier test) {
      Object source = test.getSource().orElse(null);
      if (source instanceof ClassSource) {
        return simple(((ClassSource) source).getClassName());
      }
      if (!(source instanceof MethodSource)) {
        return test.getDisplayName();
      }
      MethodSource method = (MethodSource) source;
      String shown = test.getDisplayName().replaceFirst("^\\[\\d+\\] ", "");
      String others = shown.replaceFirst("^catalogName = .*?config = \\{.*?\\}(, )?", "");
      String parameters = others.isEmpty() || shown.startsWith(method.getMethodName()) ? "" : "[" + others + "]";
      return simple(method.getClassName()) + "." + method.getMethodName() + parameters;
    }

    private static String simple(String name) {
      return name.substring(name.lastIndexOf('.') + 1);
    }
  }
}

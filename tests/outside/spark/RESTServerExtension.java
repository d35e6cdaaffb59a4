package org.apache.iceberg.rest;

import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * Stands in for the extension of Iceberg's fixtures, which starts a catalog server of its own: this
 * one gives the tests a client of the server that the system properties `outside.*` name.
 */
public class RESTServerExtension implements BeforeAllCallback, AfterAllCallback {
  public static final String FREE_PORT = "0";
  private RESTCatalog client;

  public RESTServerExtension() {}

  public RESTServerExtension(Map<String, String> unused) {}

  public RESTCatalog client() {
    return client;
  }

  @Override
  public void beforeAll(ExtensionContext context) {
    Map<String, String> properties = new HashMap<>();
    properties.put("uri", System.getProperty("outside.uri"));
    properties.put("warehouse", System.getProperty("outside.warehouse"));
    client = new RESTCatalog();
    client.setConf(new Configuration());
    client.initialize("rest", properties);
  }

  @Override
  public void afterAll(ExtensionContext context) throws Exception {
    client.close();
  }
}

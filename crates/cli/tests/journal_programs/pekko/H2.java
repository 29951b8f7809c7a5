import com.typesafe.config.Config;
import com.typesafe.config.ConfigFactory;

/** pekko-persistence-jdbc on a file of H2, whose path without its ending stands for the name of the database. */
public class H2 extends Jdbc {
  public static void main(String[] arguments) throws Exception {
    Journal.run(new H2(), arguments);
  }

  @Override
  public Config config(String host, String port, String database, String user) {
    String text =
        """
        pekko-persistence-jdbc.shared-databases.slick {
          profile = "slick.jdbc.H2Profile$"
          db {
            url = "jdbc:h2:file:%s"
            user = sa
            driver = org.h2.Driver
          }
        }
        """;
    Config other = super.config(host, port, database, user);
    return ConfigFactory.parseString(text.formatted(database)).withFallback(other);
  }
}

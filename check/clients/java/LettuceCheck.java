import io.lettuce.core.LettuceFutures;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.SetArgs;
import java.time.Duration;
import java.util.ArrayList;
import java.util.TreeSet;

/** Lettuce against the server on the port of the first argument; ../README.md says what it checks. */
class LettuceCheck {
  static void must(boolean condition, String what) {
    if (!condition) throw new AssertionError(what);
  }

  public static void main(String[] args) throws Exception {
    var redis = RedisClient.create("redis://127.0.0.1:" + args[0]);
    var connection = redis.connect();
    var client = connection.sync();
    client.set("coral", "reef");
    must(client.get("coral").equals("reef"), "GET");
    System.out.println("ok connect");

    // Lettuce sends what is asked for before the first reply as a pipeline.
    var commands = connection.async();
    commands.set("dives", "40");
    must(commands.incrby("dives", 2).get() == 42, "INCRBY in a pipeline");
    System.out.println("ok pipeline");

    client.watch("dives");
    redis.connect().sync().incr("dives");
    client.multi();
    client.set("dives", "0");
    must(client.exec().wasDiscarded(), "EXEC ignored a watched key that changed");
    client.watch("dives");
    client.multi();
    client.incr("dives");
    must(client.exec().<Long>get(0) == 44, "INCR in a transaction");
    System.out.println("ok transaction");

    var keys = new TreeSet<String>();
    var sets = new ArrayList<RedisFuture<String>>();
    for (int number = 0; number < 1000; number++) {
      keys.add("reef:" + number);
      sets.add(commands.set("reef:" + number, "x"));
    }
    LettuceFutures.awaitAll(Duration.ofMinutes(1), sets.toArray(new RedisFuture[0]));
    var options = ScanArgs.Builder.matches("reef:*").limit(100);
    var step = client.scan(options);
    var found = new ArrayList<>(step.getKeys());
    System.out.println("restart");
    System.in.read();
    while (!step.isFinished()) {
      step = client.scan(step, options);
      found.addAll(step.getKeys());
    }
    must(found.size() == 1000 && keys.equals(new TreeSet<>(found)), "SCAN");
    System.out.println("ok scan");

    client.set("tide", "low", SetArgs.Builder.px(50));
    client.set("coral", "reef", SetArgs.Builder.ex(100));
    long left = client.ttl("coral");
    must(98 <= left && left <= 100, "TTL");
    while (client.exists("tide") == 1) Thread.sleep(10);
    System.out.println("ok expiry");
    System.exit(0);
  }
}

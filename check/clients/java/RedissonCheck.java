import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import org.redisson.Redisson;
import org.redisson.api.BatchOptions;
import org.redisson.api.options.KeysScanOptions;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Redisson against the server on the port of the first argument; ../README.md says what it checks. */
class RedissonCheck {
  static void must(boolean condition, String what) {
    if (!condition) throw new AssertionError(what);
  }

  public static void main(String[] args) throws Exception {
    var config = new Config();
    config.setCodec(StringCodec.INSTANCE);
    config.useSingleServer().setAddress("redis://127.0.0.1:" + args[0]);
    var client = Redisson.create(config);
    client.getBucket("coral").set("reef");
    must(client.getBucket("coral").get().equals("reef"), "GET");
    System.out.println("ok connect");

    var batch = client.createBatch();
    batch.getBucket("dives").setAsync("40");
    batch.getAtomicLong("dives").addAndGetAsync(2);
    must(batch.execute().getResponses().get(1).equals(42L), "INCRBY in a pipeline");
    System.out.println("ok pipeline");

    // Redisson has no WATCH; its transactions of several objects need Lua.
    var atomic = BatchOptions.defaults().executionMode(BatchOptions.ExecutionMode.REDIS_WRITE_ATOMIC);
    var transaction = client.createBatch(atomic);
    transaction.getAtomicLong("dives").incrementAndGetAsync();
    transaction.getAtomicLong("dives").incrementAndGetAsync();
    must(transaction.execute().getResponses().equals(List.of(43L, 44L)), "INCR in a transaction");
    System.out.println("ok transaction");

    var keys = new TreeSet<String>();
    var sets = client.createBatch();
    for (int number = 0; number < 1000; number++) {
      keys.add("reef:" + number);
      sets.getBucket("reef:" + number).setAsync("x");
    }
    sets.execute();
    var found = new ArrayList<String>();
    var steps = client.getKeys().getKeys(KeysScanOptions.defaults().pattern("reef:*").chunkSize(100));
    for (var key : steps) {
      found.add(key);
      if (found.size() == 1) {
        System.out.println("restart");
        System.in.read();
      }
    }
    must(found.size() == 1000 && keys.equals(new TreeSet<>(found)), "SCAN");
    System.out.println("ok scan");

    client.getBucket("tide").set("low", Duration.ofMillis(50));
    client.getBucket("coral").set("reef", Duration.ofSeconds(100));
    long left = client.getBucket("coral").remainTimeToLive();
    must(98_000 <= left && left <= 100_000, "PTTL");
    while (client.getBucket("tide").isExists()) Thread.sleep(10);
    System.out.println("ok expiry");
    System.exit(0);
  }
}

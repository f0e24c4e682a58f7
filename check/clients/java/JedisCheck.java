import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;

/** Jedis against the server on the port of the first argument; ../README.md says what it checks. */
class JedisCheck {
  static void must(boolean condition, String what) {
    if (!condition) throw new AssertionError(what);
  }

  public static void main(String[] args) throws Exception {
    var client = RedisClient.create("127.0.0.1", Integer.parseInt(args[0]));
    client.set("coral", "reef");
    must(client.get("coral").equals("reef"), "GET");
    System.out.println("ok connect");

    try (var pipeline = client.pipelined()) {
      pipeline.set("dives", "40");
      var sum = pipeline.incrBy("dives", 2);
      pipeline.sync();
      must(sum.get() == 42, "INCRBY in a pipeline");
    }
    System.out.println("ok pipeline");

    try (var transaction = client.transaction(false)) {
      transaction.watch("dives");
      client.incr("dives");
      transaction.multi();
      transaction.set("dives", "0");
      must(transaction.exec() == null, "EXEC ignored a watched key that changed");
    }
    try (var transaction = client.multi()) {
      transaction.incr("dives");
      must(transaction.exec().equals(List.of(44L)), "INCR in a transaction");
    }
    System.out.println("ok transaction");

    var keys = new TreeSet<String>();
    try (var pipeline = client.pipelined()) {
      for (int number = 0; number < 1000; number++) {
        keys.add("reef:" + number);
        pipeline.set("reef:" + number, "x");
      }
    }
    var options = new ScanParams().match("reef:*").count(100);
    var step = client.scan(ScanParams.SCAN_POINTER_START, options);
    var found = new ArrayList<>(step.getResult());
    System.out.println("restart");
    System.in.read();
    client.getPool().clear(); // A connection of Jedis does not connect anew.
    while (!step.isCompleteIteration()) {
      step = client.scan(step.getCursor(), options);
      found.addAll(step.getResult());
    }
    must(found.size() == 1000 && keys.equals(new TreeSet<>(found)), "SCAN");
    System.out.println("ok scan");

    client.set("tide", "low", new SetParams().px(50));
    client.set("coral", "reef", new SetParams().ex(100));
    long left = client.ttl("coral");
    must(98 <= left && left <= 100, "TTL");
    while (client.exists("tide")) Thread.sleep(10);
    System.out.println("ok expiry");
    System.exit(0);
  }
}

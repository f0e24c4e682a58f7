// rueidis against the server on the port of the first argument; ../../README.md says what it checks.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/redis/rueidis"
)

func must(condition bool, what string) {
	if !condition {
		panic(what)
	}
}

func value[T any](result T, err error) T {
	must(err == nil, fmt.Sprint(err))
	return result
}

func main() {
	ctx := context.Background()
	// With its defaults rueidis caches on its side, and needs CLIENT TRACKING for that.
	options := rueidis.ClientOption{InitAddress: []string{"127.0.0.1:" + os.Args[1]}}
	client := value(rueidis.NewClient(options))
	value(client.Do(ctx, client.B().Set().Key("coral").Value("reef").Build()).ToString())
	get := client.B().Get().Key("coral").Cache()
	must(value(client.DoCache(ctx, get, time.Minute).ToString()) == "reef", "GET")
	fmt.Println("ok connect")

	results := client.DoMulti(ctx,
		client.B().Set().Key("dives").Value("40").Build(),
		client.B().Incrby().Key("dives").Increment(2).Build())
	must(value(results[1].AsInt64()) == 42, "INCRBY in a pipeline")
	fmt.Println("ok pipeline")

	set := func(connection rueidis.DedicatedClient) rueidis.RedisResult {
		results := connection.DoMulti(ctx,
			connection.B().Multi().Build(),
			connection.B().Incr().Key("dives").Build(),
			connection.B().Exec().Build())
		return results[2]
	}
	err := client.Dedicated(func(connection rueidis.DedicatedClient) error {
		watch := func() { value(connection.Do(ctx, connection.B().Watch().Key("dives").Build()).ToString()) }
		watch()
		value(client.Do(ctx, client.B().Incr().Key("dives").Build()).AsInt64())
		must(rueidis.IsRedisNil(set(connection).Error()), "EXEC ignored a watched key that changed")
		watch()
		sums := value(set(connection).AsIntSlice())
		must(len(sums) == 1 && sums[0] == 44, "INCR in a transaction")
		return nil
	})
	must(err == nil, fmt.Sprint(err))
	fmt.Println("ok transaction")

	var sets rueidis.Commands
	for number := range 1000 {
		sets = append(sets, client.B().Set().Key(fmt.Sprint("reef:", number)).Value("x").Build())
	}
	for _, result := range client.DoMulti(ctx, sets...) {
		value(result.ToString())
	}
	found := map[string]int{}
	for cursor, first := uint64(0), true; ; first = false {
		scan := client.B().Scan().Cursor(cursor).Match("reef:*").Count(100).Build()
		step := value(client.Do(ctx, scan).AsScanEntry())
		for _, key := range step.Elements {
			found[key]++
			must(found[key] == 1, "SCAN returned a key twice")
		}
		if cursor = step.Cursor; cursor == 0 {
			break
		}
		if first {
			fmt.Println("restart")
			value(bufio.NewReader(os.Stdin).ReadString('\n'))
		}
	}
	must(len(found) == 1000, "SCAN did not return every key")
	fmt.Println("ok scan")

	value(client.Do(ctx, client.B().Set().Key("tide").Value("low").PxMilliseconds(50).Build()).ToString())
	value(client.Do(ctx, client.B().Set().Key("coral").Value("reef").ExSeconds(100).Build()).ToString())
	left := value(client.Do(ctx, client.B().Ttl().Key("coral").Build()).AsInt64())
	must(98 <= left && left <= 100, "TTL")
	for value(client.Do(ctx, client.B().Exists().Key("tide").Build()).AsInt64()) == 1 {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("ok expiry")
}

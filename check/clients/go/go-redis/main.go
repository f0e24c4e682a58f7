// go-redis against the server on the port of the first argument; ../../README.md says what it checks.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
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
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	value(client.Set(ctx, "coral", "reef", 0).Result())
	must(value(client.Get(ctx, "coral").Result()) == "reef", "GET")
	fmt.Println("ok connect")

	pipeline := client.Pipeline()
	pipeline.Set(ctx, "dives", 40, 0)
	sum := pipeline.IncrBy(ctx, "dives", 2)
	value(pipeline.Exec(ctx))
	must(sum.Val() == 42, "INCRBY in a pipeline")
	fmt.Println("ok pipeline")

	err := client.Watch(ctx, func(tx *redis.Tx) error {
		value(client.Incr(ctx, "dives").Result())
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.Set(ctx, "dives", 0, 0).Err()
		})
		return err
	}, "dives")
	must(errors.Is(err, redis.TxFailedErr), "EXEC ignored a watched key that changed")
	transaction := client.TxPipeline()
	sum = transaction.Incr(ctx, "dives")
	value(transaction.Exec(ctx))
	must(sum.Val() == 44, "INCR in a transaction")
	fmt.Println("ok transaction")

	for number := range 1000 {
		pipeline.Set(ctx, fmt.Sprint("reef:", number), number, 0)
	}
	value(pipeline.Exec(ctx))
	found := map[string]int{}
	keys, cursor, err := client.Scan(ctx, 0, "reef:*", 100).Result()
	for first := true; ; first = false {
		must(err == nil, fmt.Sprint(err))
		for _, key := range keys {
			found[key]++
			must(found[key] == 1, "SCAN returned a key twice")
		}
		if cursor == 0 {
			break
		}
		if first {
			fmt.Println("restart")
			value(bufio.NewReader(os.Stdin).ReadString('\n'))
		}
		keys, cursor, err = client.Scan(ctx, cursor, "reef:*", 100).Result()
	}
	must(len(found) == 1000, "SCAN did not return every key")
	fmt.Println("ok scan")

	value(client.Set(ctx, "tide", "low", 50*time.Millisecond).Result())
	value(client.Set(ctx, "coral", "reef", 100*time.Second).Result())
	left := value(client.TTL(ctx, "coral").Result())
	must(98*time.Second <= left && left <= 100*time.Second, "TTL")
	for value(client.Exists(ctx, "tide").Result()) == 1 {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("ok expiry")
}

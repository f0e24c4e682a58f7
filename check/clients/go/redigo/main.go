// redigo against the server on the port of the first argument; ../../README.md says what it checks.
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"

	"github.com/gomodule/redigo/redis"
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
	connect := func() redis.Conn { return value(redis.Dial("tcp", "127.0.0.1:"+os.Args[1])) }
	client := connect()
	value(client.Do("SET", "coral", "reef"))
	must(value(redis.String(client.Do("GET", "coral"))) == "reef", "GET")
	fmt.Println("ok connect")

	must(client.Send("SET", "dives", 40) == nil, "Send")
	must(client.Send("INCRBY", "dives", 2) == nil, "Send")
	replies := value(redis.Values(client.Do("")))
	must(len(replies) == 2 && replies[1] == int64(42), "INCRBY in a pipeline")
	fmt.Println("ok pipeline")

	transaction := func() (any, error) {
		must(client.Send("MULTI") == nil, "Send")
		must(client.Send("INCR", "dives") == nil, "Send")
		return client.Do("EXEC")
	}
	value(client.Do("WATCH", "dives"))
	value(connect().Do("INCR", "dives"))
	must(value(transaction()) == nil, "EXEC ignored a watched key that changed")
	value(client.Do("WATCH", "dives"))
	sums := value(redis.Ints(transaction()))
	must(len(sums) == 1 && sums[0] == 44, "INCR in a transaction")
	fmt.Println("ok transaction")

	for number := range 1000 {
		must(client.Send("SET", fmt.Sprint("reef:", number), number) == nil, "Send")
	}
	value(client.Do(""))
	found := map[string]int{}
	for cursor, first := "0", true; ; first = false {
		step := value(redis.Values(client.Do("SCAN", cursor, "MATCH", "reef:*", "COUNT", 100)))
		cursor = value(redis.String(step[0], nil))
		for _, key := range value(redis.Strings(step[1], nil)) {
			found[key]++
			must(found[key] == 1, "SCAN returned a key twice")
		}
		if cursor == "0" {
			break
		}
		if first {
			fmt.Println("restart")
			value(bufio.NewReader(os.Stdin).ReadString('\n'))
			client = connect() // A connection of redigo does not connect anew.
		}
	}
	must(len(found) == 1000, "SCAN did not return every key")
	fmt.Println("ok scan")

	value(client.Do("SET", "tide", "low", "PX", 50))
	value(client.Do("SET", "coral", "reef", "EX", 100))
	left := value(redis.Int(client.Do("TTL", "coral")))
	must(98 <= left && left <= 100, "TTL")
	for value(redis.Int(client.Do("EXISTS", "tide"))) == 1 {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("ok expiry")
}

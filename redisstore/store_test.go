package redisstore_test

import (
	"testing"

	"github.com/penstock-io/penstock/storetest"
)

func TestRedisIsAStore(t *testing.T) {
	storetest.Run(t, openHeld)
}

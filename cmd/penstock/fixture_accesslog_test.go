package main

import (
	"fmt"
	"strings"
	"time"
)

// accessLog is the log that pages replay: 200 visitors for ten minutes, and for two of them a scraper with six requests
// a second.
func accessLog() string {
	var b strings.Builder
	add := func(second int, address, path string) {
		at := time.Date(2026, 11, 1, 12, 0, second, 0, time.UTC).Format("02/Jan/2006:15:04:05 -0700")
		fmt.Fprintf(&b, `%s - - [%s] "GET %s HTTP/1.1" 200 512 "-" "Mozilla/5.0"`+"\n", address, at, path)
	}
	for second := range 600 {
		for i := range 4 {
			add(second, fmt.Sprintf("198.51.100.%d", (second*7+i*13)%200), "/login")
		}
		for i := range 6 {
			if second >= 120 && second < 240 {
				add(second, "203.0.113.9", fmt.Sprintf("/item/%d", second*6+i))
			}
		}
	}
	return b.String()
}

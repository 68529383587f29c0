module github.com/penstock-io/penstock

go 1.25.0

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/redis/rueidis v1.0.79
	golang.org/x/sys v0.47.0 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)

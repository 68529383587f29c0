module github.com/penstock-io/penstock

go 1.25

require (
	github.com/anishathalye/porcupine v1.3.1
	pgregory.net/rapid v1.3.0
)

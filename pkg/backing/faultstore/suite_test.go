package faultstore_test

import (
	"testing"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/pkg/backing/storetest"
)

func TestSuiteWithoutFaults(t *testing.T) {
	storetest.Run(t, func(t *testing.T, size int64) backing.Store {
		return faultstore.New(backing.NewMem(size), 1)
	})
}

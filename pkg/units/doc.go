// Package units holds the quantities an administrator writes and reads: Size
// ("64GiB"), Rate ("100MiB/s"), Percent ("5%") and Duration ("30s", "7d").
//
// Each is a number with a type of its own, so that bytes and bytes per second
// cannot be mixed up, and each has three ways to text and back:
//
//   - ParseX reads what people write. It refuses negative numbers, what does
//     not fit, and anything it does not understand, with a *ParseError whose
//     text reads on after a name: `must be a size such as 64GiB (got "64G")`.
//   - String prints the exact value; ParseX(x.String()) == x for every value
//     that ParseX can return.
//   - MarshalText and UnmarshalText are those two for encoders.
//
// Human, on Size and Rate, rounds to three digits for tables. It is for eyes
// alone and is not meant to be read back.
package units

"""Deterministic expressions: same result for the same values. Pure: no Spark and no spec.

Owns a list of deterministic functions. Any other function is treated as not deterministic, because
a new release of Spark or a catalogue may add random ones.
"""

from __future__ import annotations

from typing import Final

from penstock.core.sql import tree
from penstock.core.sql.checked_expression import parsed_expression

# Functions of the current time are constant within a query.
_DETERMINISTIC: Final = """
abs acos acosh add_months aggregate array array_append array_compact array_contains
array_distinct array_except array_insert array_intersect array_join array_max array_min
array_position array_prepend array_remove array_repeat array_size array_union
arrays_overlap arrays_zip ascii asin asinh atan atan2 atanh
base64 bigint bin binary bit_count bit_get bit_length boolean bround btrim
cardinality cast cbrt ceil ceiling char char_length character_length chr coalesce concat
concat_ws contains conv convert_timezone cos cosh cot crc32 csc curdate current_date
current_timestamp
date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd
datediff datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees double
e element_at elt encode endswith equal_null exists exp expm1 extract
factorial filter find_in_set flatten float floor forall format_number format_string
from_csv from_json from_unixtime from_utc_timestamp
get get_json_object getbit greatest hash hex hour hypot
if ifnull ilike initcap instr int isnan isnotnull isnull json_array_length json_object_keys
last_day lcase least left len length levenshtein like ln locate log log10 log1p log2 lower lpad
ltrim luhn_check
make_date make_timestamp make_timestamp_ltz make_timestamp_ntz map map_concat map_contains_key
map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with mask
md5 minute mod month monthname months_between
named_struct nanvl negative next_day now nullif nullifzero nvl nvl2 octet_length overlay
parse_url pi pmod position positive pow power printf quarter
radians reduce regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like
regexp_replace regexp_substr repeat replace reverse right rint rlike round rpad rtrim
sec second sequence sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh
size slice smallint sort_array soundex space split split_part sqrt startswith str_to_map string
struct substr substring substring_index
tan tanh timestamp timestamp_micros timestamp_millis timestamp_seconds tinyint to_base32
to_binary to_char to_date to_json to_number to_timestamp to_timestamp_ltz to_timestamp_ntz
to_unix_timestamp to_utc_timestamp to_varchar transform transform_keys transform_values
translate trim trunc try_add try_divide try_element_at try_mod try_multiply try_subtract
try_to_binary try_to_number try_to_timestamp try_url_decode typeof
ucase unbase64 unhex unix_date unix_micros unix_millis unix_seconds unix_timestamp upper
url_decode url_encode
weekday weekofyear width_bucket xxhash64 year zeroifnull zip_with
"""
DETERMINISTIC: Final = frozenset(_DETERMINISTIC.split())


def is_deterministic(expression: str) -> bool:
    """Return whether an expression of Spark SQL calls only listed functions, none by a path.

    An expression with `*` is not deterministic, because its columns depend on how the rows are
    read.

    Raises:
        InvalidRequest: It is not an expression.
    """
    for node in tree.walk(parsed_expression(expression).root):
        if isinstance(node, tree.Star | tree.Query):
            return False
        if isinstance(node, tree.Call):
            is_known = len(node.name) == 1 and node.name[0].lower() in DETERMINISTIC
            if not is_known or node.over is not None:
                return False
    return True

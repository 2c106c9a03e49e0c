"""Formats of JSON schemas that are enforced, as expressions that match the whole text."""

from __future__ import annotations

_FOURTH = "(0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"([0-9]{{2}}{_FOURTH}|(00|{_FOURTH})00)"
_DATE = (
    r"([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    rf"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR = r"([01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_HOUR}:[0-5][0-9])"
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOSTNAME = rf"{_LABEL}(\.{_LABEL}){{0,8}}"
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_H16 = "[0-9a-fA-F]{1,4}"
_SHORT_IPV6 = "|".join(
    f"({_H16}:){{1,{before}}}(:{_H16}){{1,{7 - before}}}" for before in range(1, 7)
)
_IPV6 = f"({_H16}:){{7}}{_H16}|{_SHORT_IPV6}|({_H16}:){{1,7}}:|:(:{_H16}){{1,7}}|::"
_URI_END = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})"
_URI_CHARACTER = f"({_URI_END}|/)"
_URI = (
    rf"[a-zA-Z][a-zA-Z0-9+.-]{{0,31}}:(//{_HOSTNAME}(:[0-9]{{1,5}})?(/{_URI_CHARACTER}*)?"
    rf"|{_URI_END}{_URI_CHARACTER}*)(\?{_URI_CHARACTER}*)?(#{_URI_CHARACTER}*)?"
)
_DAYS = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
_HOURS = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"

FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "uuid": "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
    "ipv4": rf"^{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}$",
    "ipv6": f"^({_IPV6})$",
    "uri": f"^{_URI}$",
    "duration": f"^P([0-9]+W|{_DAYS}({_HOURS})?|{_HOURS})$",
    "json-pointer": "^(/([^/~]|~[01])*)*$",
    "hostname": f"^{_HOSTNAME}$",
    "email": rf"^{_ATOM}(\.{_ATOM}){{0,8}}@{_HOSTNAME}$",
}
"""Some are narrower than their standards; none is wider."""

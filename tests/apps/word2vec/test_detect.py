"""What a text is, told from its beginning."""

import pytest

from shoal.apps.word2vec.detect import check_segmented, kind_of
from shoal.apps.word2vec.tokens import SPACE, WORDS
from shoal.errors import InvalidValue

ENGLISH = "It was the best of times, it was the worst of times."
THAI = "ประเทศไทยตั้งอยู่ในเอเชียตะวันออกเฉียงใต้ มีกรุงเทพมหานครเป็นเมืองหลวง"
THAI_WORDS = "ประเทศ ไทย ตั้ง อยู่ ใน เอเชีย ตะวันออก เฉียง ใต้ มี เมืองหลวง"
CHINESE, CHINESE_WORDS = (
    "我爱北京天安门，天安门上太阳升。",
    "我 爱 北京 天安门 ， 天安门 上 太阳 升 。",
)


@pytest.mark.parametrize(
    ("lines", "kind", "because"),
    [
        ([ENGLISH], WORDS, "prose"),
        (["Ein Mann, ein Wort.", "Über allen Gipfeln ist Ruh;"], WORDS, "prose"),
        (["Все счастливые семьи похожи друг на друга, каждая ..."], WORDS, "prose"),
        (["Εν αρχή ην ο λόγος."], WORDS, "prose"),
        (["“_So_—and so,” he said; 'twas well-known."], WORDS, "prose"),
        ([ENGLISH] * 9 + ["17 4 9023"] * 9, WORDS, "prose"),  # a fifth are numbers
        ([ENGLISH] + ["17 4 9023"] * 3, SPACE, "43 % of the tokens are numbers"),
        (["17 4 9023 17"], SPACE, "100 % of the tokens"),
        (["item_17 item_4"], SPACE, "100 % of the tokens"),
        (["user:9 a=b B004CYRO"], SPACE, "100 % of the tokens"),
        (["0.5 1e-3 -4"], SPACE, "100 % of the tokens"),
        (["the quick brown fox"], SPACE, "no punctuation"),
        (["AAPL MSFT GOOG"], SPACE, "no punctuation"),
        (["the cat sat , and the dog ran ."] * 20, SPACE, "no punctuation"),
        (["हिन्दी भाषा है।"], SPACE, "no capitals"),
        (["السلام عليكم، يا صديقي."], SPACE, "no capitals"),
        (["한국어는 재미있다."], SPACE, "no capitals"),
        (["😀 😃"], SPACE, "no punctuation"),
        ([], SPACE, "no punctuation"),
        (["", " \n"], SPACE, "no punctuation"),
    ],
)
def test_kinds_of_texts(lines, kind, because):
    found = kind_of(lines)
    assert found[0] == kind
    assert because in found[1]


def test_a_fiftieth_of_words_with_punctuation_is_prose():
    words = ["word"] * 49
    assert kind_of([" ".join([*words, "end."])])[0] == WORDS
    assert kind_of([" ".join([*words, "word", "end."])])[0] == SPACE


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (THAI, "Thai"),
        (CHINESE, "Chinese or Japanese"),
        ("吾輩は猫である。名前はまだ無い。", "Chinese or Japanese"),
        ("កម្ពុជាជាប្រទេសមួយនៅអាស៊ីអាគ្នេយ៍", "Khmer"),
        ("ປະເທດລາວຕັ້ງຢູ່ໃນອາຊີຕາເວັນອອກສ່ຽງໃຕ້", "Lao"),
        ("မြန်မာနိုင်ငံသည်အရှေ့တောင်အာရှတွင်ရှိသည်။", "Burmese"),
        ("བོད་ནི་མཐོ་སྒང་ཆེན་པོ་ཞིག་ཡིན།", "Tibetan"),
        (f"{THAI}\n{ENGLISH[:20]}", "Thai"),
    ],
)
def test_a_text_without_blanks_between_words_is_refused_by_name(text, name):
    with pytest.raises(InvalidValue, match=rf"t.txt is in {name}, .*--tokens space"):
        check_segmented(text.splitlines(), "t.txt")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ที่ ดี",
        THAI_WORDS,
        "我 爱 北京",
        CHINESE_WORDS,
        "吾輩 は 猫 で ある 。 名前 は まだ 無い 。",
        "无线蓝牙耳机 phone 手机",
        f"{ENGLISH} {ENGLISH} {CHINESE}",
        "한국어는 재미있다.",
        "item_17 17",
        "ข้อมูล_17 ข้อมูล_4",
    ],
)
def test_a_text_with_blanks_between_words_is_not(text):
    check_segmented(text.splitlines(), "t.txt")
